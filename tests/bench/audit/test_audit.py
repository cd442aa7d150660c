"""The audit: places that maps share, shares of relevance, drift, and the planted shortcut of scenes-tagged."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

import vitrail
from vitrail.bench.audit.audit import audit_maps
from vitrail.bench.map_store import write_index, write_shard
from vitrail.errors import OptionError

pytest.importorskip("sklearn")
pytest.importorskip("pyarrow")

GRID = 8


def write_store(folder, corner_class=1, key="abc"):
    """Two classes of 20 maps with relevance at random places; half of one class has it in the top left corner."""
    generator = np.random.default_rng(0)
    maps, rows = np.full((40, GRID, GRID), 0.01), []
    for i in range(40):
        label = i % 2
        row, column = generator.integers(2, 6, 2)
        maps[i, row : row + 2, column : column + 2] = 1
        if label == corner_class and i % 4 > 1:
            maps[i] = 0.01
            maps[i, 0, :2] = 1
        place = {"class": label, "name": ["dog", "cat, puss"][label], "part": "p", "offset": i, "flat": False}
        rows.append({"image": f"{i:02d}", "method": "rollout", **place})
    rows.append({"image": "broken", "method": "rollout", "error": "no image"})
    write_shard(folder / "parts" / "p.safetensors", {"rollout": torch.tensor(maps)}, {})
    write_index(folder, rows, {"key": key, "model": "tiny", "methods": ["rollout"], "versions": {}})
    return vitrail.open_maps(folder)


def test_cluster_in_a_corner_is_the_first_finding(tmp_path):
    audit = audit_maps(write_store(tmp_path))
    first = audit.findings[0]
    assert (first.name, first.place) == ("cat", "top left")
    assert 10 <= first.maps <= 13, "the ten maps of the corner, and at most three neighbours"
    assert {int(image) % 4 for image in first.images} == {3}
    at_corner = 2 / (2 + 0.01 * (GRID * GRID - 2))
    assert 10 / first.maps * at_corner == pytest.approx(first.score, abs=0.05)
    assert [one.name for one in audit.classes] == ["cat", "dog"]
    assert audit.classes[1].score < 0.1 < audit.classes[0].score
    assert audit.failed == 1
    assert not audit.masks
    data = json.loads(json.dumps(audit.to_dict()))
    assert data["findings"][0]["sentence"].endswith(
        "of the class) is at one place, top left, which covers 5 % of the image"
    )
    assert data["classes"][0]["outside"] is None
    assert np.allclose(np.sum(data["classes"][0]["mean"]), 1, atol=1e-3)


def test_two_maps_are_no_finding(tmp_path):
    maps = torch.zeros(2, GRID, GRID)
    maps[:, 0, 0] = 1
    rows = [
        {"image": str(i), "method": "rollout", "class": 0, "part": "p", "offset": i, "flat": False} for i in range(2)
    ]
    write_shard(tmp_path / "parts" / "p.safetensors", {"rollout": maps}, {})
    write_index(tmp_path, rows, {"key": "abc", "model": "tiny", "methods": ["rollout"], "versions": {}})
    audit = audit_maps(vitrail.open_maps(tmp_path))
    assert not audit.findings
    assert [(one.name, one.maps, one.border, one.score) for one in audit.classes] == [("class 0", 2, 1.0, 0.0)]


def test_masks_say_what_is_off_the_object(tmp_path):
    store = write_store(tmp_path)

    def everything(rows, grid):
        return np.ones((len(rows), *grid))

    def nothing(rows, grid):
        return np.zeros((len(rows), *grid))

    covered, bare = (audit_maps(store, masks=masks) for masks in (everything, nothing))
    assert covered.masks
    assert not covered.findings
    assert [one.outside for one in covered.classes] == [0, 0]
    assert [one.outside for one in bare.classes] == pytest.approx([1, 1])


def test_drift_is_zero_for_the_same_maps_and_named_otherwise(tmp_path):
    store = write_store(tmp_path / "a")
    same = audit_maps(store, against=vitrail.open_maps(tmp_path / "a"))
    assert [one.correlation for one in same.drifts] == pytest.approx([1, 1])
    other = audit_maps(store, against=write_store(tmp_path / "b", corner_class=0, key="def"))
    assert all(one.correlation < 0.9 and one.against == "run def" and one.images == 20 for one in other.drifts)
    with pytest.raises(OptionError, match="has no maps by 'tam': it has rollout"):
        audit_maps(store, method="tam")


PLAN = """
name = "shortcut"
models = ["scenes-tagged", "scenes"]
methods = ["transformer_mm"]
controls = false
targets = "label"
protocols = ["complexity"]
keep_maps = true
dataset = { name = "scenes", options = { split = "test", count = 120, objects = 1, tagged = true } }
"""


@pytest.mark.slow
def test_audit_finds_the_planted_shortcut(tmp_path):
    """Classes of a model that reads tags against those of one that reads objects, on the same tagged scenes."""
    from sklearn.metrics import roc_auc_score
    from typer.testing import CliRunner

    from vitrail.bench.run import run_plan
    from vitrail.cli.app import app

    (tmp_path / "plan.toml").write_text(PLAN, encoding="utf-8")
    run = run_plan(tmp_path / "plan.toml", tmp_path / "runs")
    result = CliRunner().invoke(app, ["audit", str(run.folder), "--checks", "1"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    audit = json.loads((run.folder / "audit.json").read_text(encoding="utf-8"))
    tagged = [one["model"] == "scenes-tagged" for one in audit["classes"]]
    assert len(tagged) == 24
    assert roc_auc_score(tagged, [one["score"] for one in audit["classes"]]) >= 0.95
    assert audit["findings"][0]["model"] == "scenes-tagged"
    assert {one["place"] for one in audit["findings"][:4]} <= {
        f"{v} {h}" for v in ("top", "bottom") for h in ("left", "right")
    }
    assert audit["masks"]
    assert sum(audit["checks"].values()) == 1
    page = (run.folder / "audit.html").read_text(encoding="utf-8")
    assert page.count("data:image/jpeg") >= 8
    assert "http://" not in page.replace("http://www.w3.org", "")
