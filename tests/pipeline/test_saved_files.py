"""Results that can be compared, saved and saved again."""

import json
import stat

import pytest
import torch
from PIL import Image

import vitrail
from vitrail.models.preprocess import Preprocess
from vitrail.testing import tiny_vit

pytestmark = pytest.mark.filterwarnings("ignore::vitrail.errors.MapWarning")
IMAGES = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
PREPROCESS = Preprocess((32, 32), (0.5,) * 3, (0.5,) * 3, 1.0)


def explain(inputs, **options):
    return vitrail.explain(tiny_vit(), inputs, "rollout", **options)


def test_explanations_compare_by_identity():
    first, second = explain(IMAGES), explain(IMAGES)
    assert first == first
    assert first != second
    assert len({first, second, first}) == 2


def test_saved_files_have_equal_permissions(tmp_path):
    explain(IMAGES).save(tmp_path)
    modes = {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert len(modes) == 1


def test_save_removes_only_its_own_stale_overlays(tmp_path):
    explain(IMAGES, target=[[0, 1, 2]]).save(tmp_path)
    (tmp_path / "overlay-mine.png").write_bytes(b"")
    (tmp_path / "overlay-007-0-class-1.png").write_bytes(b"")
    (tmp_path / "notes.txt").write_text("")
    explain(IMAGES[:1], target=1).save(tmp_path)
    kept = {"overlay-mine.png", "overlay-007-0-class-1.png", "notes.txt"}
    assert {p.name for p in tmp_path.iterdir()} == {"overlay.png", "maps.safetensors", "manifest.json", *kept}


@pytest.mark.parametrize(
    "manifest", ["", "[]", "{}", '{"overlays": 3}', '{"overlays": ["../notes.txt", "notes.txt", 3]}']
)
def test_save_ignores_manifests_of_other_forms(manifest, tmp_path):
    folder = tmp_path / "out"
    folder.mkdir()
    (tmp_path / "notes.txt").write_text("")
    (folder / "notes.txt").write_text("")
    (folder / "manifest.json").write_text(manifest)
    explain(IMAGES).save(folder)
    assert (tmp_path / "notes.txt").exists()
    assert (folder / "notes.txt").exists()


def test_manifest_names_inputs_preprocessing_and_weights(tmp_path):
    for name in ("cat.png", "dog.png"):
        Image.new("RGB", (40, 30), "red").save(tmp_path / name)
    model = tiny_vit()
    found = vitrail.explain(
        model, [tmp_path / "cat.png", str(tmp_path / "dog.png")], "rollout", preprocess=PREPROCESS, batch_size=1
    )
    saved = json.loads((found.save(tmp_path / "out") / "manifest.json").read_text())
    assert saved["inputs"] == ["cat.png", "dog.png"]
    assert saved["preprocess"]["applied"] is True
    assert saved["preprocess"]["size"] == [32, 32]
    assert len(saved["weights_sha256"]) == 64
    assert saved["overlays"] == sorted(p.name for p in (tmp_path / "out").glob("overlay*"))
    tensors = vitrail.explain(model, IMAGES, "rollout").manifest()
    assert tensors["inputs"] == ["tensor 0", "tensor 1"]
    assert tensors["preprocess"] == {"applied": False}
    assert tensors["weights_sha256"] == saved["weights_sha256"]


def test_weights_hash_depends_on_the_weights_and_is_computed_once(monkeypatch):
    from vitrail.models import checkpoint

    calls = []
    compute = checkpoint._sha256
    monkeypatch.setattr(checkpoint, "_sha256", lambda model: calls.append(1) or compute(model))
    model = tiny_vit()
    found = [vitrail.explain(model, IMAGES, "rollout") for _ in range(2)]
    assert not calls
    before = {e.manifest()["weights_sha256"] for e in found}
    assert (len(before), len(calls)) == (1, 1)
    unsaved = vitrail.explain(model, IMAGES, "rollout")
    with torch.no_grad():
        next(model.parameters()).add_(1.0)
    assert found[0].manifest()["weights_sha256"] in before
    assert unsaved.manifest()["weights_sha256"] is None, "the weights changed after the explanation"
    after = vitrail.explain(model, IMAGES, "rollout").manifest()["weights_sha256"]
    assert after is not None
    assert after not in before
