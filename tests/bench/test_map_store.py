"""The store of maps: random access by id, kept maps of a run, damaged files, resuming."""

from __future__ import annotations

import json

import pytest
import torch

import vitrail
from tests.bench.bench_helpers import ONE, open_store
from vitrail.bench.engines.local import LocalEngine
from vitrail.bench.map_store import has_maps, map_pixels, write_index, write_shard
from vitrail.errors import DataError, InputError
from vitrail.methods.postprocess import normalise

pytest.importorskip("pyarrow")


@pytest.fixture
def store(tmp_path):
    """Two files of maps; map i of a method has the value i."""
    rows = []
    for part in range(2):
        maps = torch.arange(3.0)[:, None, None].expand(3, 2, 4) / 8 + part / 2
        write_shard(tmp_path / "parts" / f"p{part}.safetensors", {"rollout": maps, "tam": -maps}, {})
        for offset in range(3):
            place = {"class": offset, "part": f"p{part}", "offset": offset}
            rows += [{"image": f"{'ba'[part]}{offset}é", "method": m, **place} for m in ("tam", "rollout")]
    rows.append({"image": "broken", "method": "rollout", "error": "no image"})
    write_index(tmp_path, rows, {"key": "abc", "model": "tiny"})
    return vitrail.open_maps(tmp_path)


def test_maps_are_read_by_id(store):
    assert len(store) == 13
    assert store.ids == ["a0é", "a1é", "a2é", "b0é", "b1é", "b2é", "broken"]
    assert repr(store) == "MapStore(13 maps of tiny by rollout, tam, key abc)"
    one = store.read("a2é", method="tam")
    assert (one.dtype, one.shape) == (torch.float32, (2, 4))
    assert (one == -0.75).all()
    rows = store.select(method="rollout")
    assert rows.column("image").to_pylist() == store.ids[:-1]
    assert store.stack(rows)[:, 0, 0].tolist() == [0.5, 0.625, 0.75, 0, 0.125, 0.25]
    assert store.stack(store.rows("b1é"))[:, 1, 3].tolist() == [0.125, -0.125]


def test_notebooks_show_some_maps(store, monkeypatch):
    shown = store._repr_html_()
    assert shown.count("data:image/png;base64,") == 12
    assert shown.startswith("<p>MapStore(13 maps")
    assert "broken" not in shown
    monkeypatch.setattr("vitrail.bench.map_store.SHOWN_IN_NOTEBOOK", 2)
    assert [f"{name}<br>" in store._repr_html_() for name in ("a0é", "b0é", "a1é")] == [True, True, False]


def test_colours_of_a_map():
    low, high = map_pixels(torch.tensor([[0.0, 1.0]]), "rollout")[0].tolist()
    assert sum(low) < 100 < 500 < sum(high), "dark to light"
    negative, positive = map_pixels(torch.tensor([[-1.0, 1.0]]), "attnlrp")[0].tolist()
    assert negative[2] > negative[0], "blue"
    assert positive[0] > positive[2], "red"
    unknown, known = (map_pixels(torch.tensor([[0.0, 1.0]]), name) for name in ("not a method", "rollout"))
    assert (unknown == known).all()


def test_errors_name_what_fits(store):
    with pytest.raises(InputError, match=r"2 maps of 'a0é' fit, expected one: add method. It has method='rollout'"):
        store.read("a0é")
    with pytest.raises(InputError, match=r"no image 'c' in .* pass an id of its 7, for example 'broken'"):
        store.read("c")
    with pytest.raises(InputError, match="broken has no map by rollout: no image"):
        store.read("broken")


def test_damaged_files_are_named(store):
    path = store.folder / "parts" / "p1.safetensors"
    path.write_bytes(path.read_bytes()[:-5])
    fresh = vitrail.open_maps(store.folder)
    assert fresh.read("b0é", method="rollout").shape == (2, 4), "other files are still read"
    with pytest.raises(DataError, match=r"p1.safetensors is truncated or damaged: run the command"):
        fresh.read("a0é", method="rollout")
    path.unlink()
    with pytest.raises(DataError, match=r"p1.safetensors is missing"):
        fresh.read("a0é", method="rollout")
    index = store.folder / "index.parquet"
    index.write_bytes(index.read_bytes()[:-9])
    with pytest.raises(DataError, match=r"index.parquet is truncated"):
        vitrail.open_maps(store.folder)
    index.unlink()
    with pytest.raises(DataError, match="has no index of maps"):
        vitrail.open_maps(store.folder)


def test_maps_of_another_run_are_not_read(store):
    maps = {"rollout": torch.ones(3, 2, 4), "tam": torch.ones(3, 2, 4)}
    path = write_shard(store.folder / "parts" / "p1.safetensors", maps, {"key": "xyz", "part": "p1"})
    fresh = vitrail.open_maps(store.folder)
    with pytest.raises(DataError, match=r"p1.safetensors has maps of another model.* .key xyz, the index has abc."):
        fresh.read("a0é", method="rollout")
    assert has_maps(path, {"key": "xyz"})
    assert not has_maps(path, {"key": "abc"})


def test_run_is_a_store_and_computes_a_truncated_file_again(tmp_path):
    text = ONE.replace("SEED", "4\nkeep_maps = true").replace("count = 4", "count = 2")
    run = open_store(text, tmp_path, tmp_path)
    LocalEngine(1).run(run.missing())
    run.export()
    store = vitrail.open_maps(run.folder)
    assert store.manifest["key"] == run.context.key == store.key
    assert store.manifest["weights"] == {"scenes": run.context.model(0).weights_hash}
    (row,) = store.rows(store.ids[0], method="gradtoken", target="predicted")
    probability = run.merge().filter(image=row["image"], method="gradtoken", score="probability").row(0, named=True)
    assert (row["probability"], row["class"]) == (probability["value"], probability["explained"])
    assert row["name"] == run.context.model(0).loaded.classes[row["class"]]
    (index,) = (i for i, name in enumerate(run.context.images(0).dataset.ids) if name == row["image"])
    image = run.context.model(0).preprocess(run.context.images(0).dataset[index].image)
    explained = vitrail.explain(run.context.model(0).loaded, image[None], "gradtoken", target=row["class"])
    expected = normalise(explained.grid[0, 0].float(), explained.signed)
    torch.testing.assert_close(store.read(row), expected, rtol=2e-3, atol=2e-3)
    path = run.chunks[0].path
    before = store.stack(store.select())
    shard = path.with_suffix(".safetensors")
    shard.write_bytes(shard.read_bytes()[:-4])
    assert not has_maps(path, run.chunks[0].footer)
    assert run.missing() == [run.chunks[0]]
    LocalEngine(1).run(run.missing())
    again = vitrail.open_maps(run.folder)
    assert torch.equal(again.stack(again.select()), before)
    assert json.loads((run.folder / "manifest.json").read_text())["key"] == store.key
