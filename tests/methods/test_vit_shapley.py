"""ViT Shapley: maps of trained explainers, refusals, and the explainer of the package."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import vitrail
from tests.methods.shapley_explainer.small_explainer import PIXELS, small_vit, train
from vitrail.data import Scenes
from vitrail.errors import InputError, NotApplicableError, TargetError, WeightsError
from vitrail.methods.shapley_explainer import TrainingSettings
from vitrail.methods.shapley_explainer.weights import packaged_explainers, read_record


def test_values_sum_to_the_probability_minus_that_without_patches(trained):
    path, run = trained
    model = small_vit()
    e = vitrail.explain(model, PIXELS, "vit_shapley", weights=str(path), target=[[0, 1, 2]])
    assert e.signed
    assert torch.allclose(e.grid.sum((2, 3)), model(PIXELS).softmax(-1) - run.empty, atol=1e-5)
    assert torch.allclose(e.grid.sum(1), torch.zeros(6, 4, 4), atol=2e-3), "probabilities of all classes sum to one"


def test_a_group_of_classes_has_the_sum_of_their_values(trained):
    path, _ = trained
    target = [[0, 2, vitrail.ClassGroup([0, 2])]]
    e = vitrail.explain(small_vit(), PIXELS, "vit_shapley", weights=str(path), target=target)
    assert torch.allclose(e.grid[:, 2], e.grid[:, 0] + e.grid[:, 1], atol=1e-6)


def test_other_precisions_of_the_same_weights_are_accepted(trained):
    path, _ = trained
    single = vitrail.explain(small_vit(), PIXELS, "vit_shapley", weights=str(path), target=1).grid
    double = vitrail.explain(small_vit().double(), PIXELS.double(), "vit_shapley", weights=str(path), target=1).grid
    assert double.dtype == torch.float64
    assert torch.allclose(single, double.float(), atol=1e-5)


def test_one_forward_pass_of_the_explainer_for_all_targets(trained):
    path, _ = trained
    done = []
    vitrail.explain(small_vit(), PIXELS, "vit_shapley", weights=str(path), target=[[0, 1, 2]], advance=done.append)
    assert sum(done) == len(PIXELS)


def test_a_batch_is_its_images_one_by_one(trained):
    path, _ = trained
    together = vitrail.explain(small_vit(), PIXELS, "vit_shapley", weights=str(path), target=1)
    apart = vitrail.explain(small_vit(), PIXELS, "vit_shapley", weights=str(path), target=1, batch_size=1)
    assert torch.allclose(together.grid, apart.grid, atol=1e-6)


def test_a_file_that_was_replaced_is_read_again(trained, tmp_path):
    path = tmp_path / "copy.safetensors"
    path.write_bytes(trained[0].read_bytes())
    model = small_vit()
    before = vitrail.explain(model, PIXELS, "vit_shapley", weights=str(path), target=1).grid
    train(path, settings=TrainingSettings(1, 3, 3, 1, 1, explainer_lr=0.01))
    assert not torch.equal(vitrail.explain(model, PIXELS, "vit_shapley", weights=str(path), target=1).grid, before)


def refused(error, message, model=None, images=PIXELS, target=1, **options):
    with pytest.raises(error, match=message) as caught:
        vitrail.explain(model or small_vit(), images, "vit_shapley", target=target, **options)
    assert "\n" not in str(caught.value)


def test_models_without_an_explainer_are_refused():
    refused(NotApplicableError, "vit_shapley needs an explainer trained for this PlainViT.*vitrail train-explainer")


def test_explainers_of_other_models_are_refused(trained):
    weights = str(trained[0])
    refused(WeightsError, "was trained for another model: small, weights", small_vit(seed=1), weights=weights)
    refused(WeightsError, "was trained for another model", small_vit(classes=4), weights=weights)


def test_other_image_sizes_are_refused(trained):
    timm = pytest.importorskip("timm")
    model = timm.create_model("vit_tiny_patch16_224", img_size=16, patch_size=8, embed_dim=24, depth=1, num_heads=2,
                              num_classes=3, dynamic_img_size=True)  # fmt: skip
    path = trained[0].with_name("dynamic.safetensors")
    train(path, model.eval())
    larger = torch.randn(1, 3, 32, 32)
    refused(InputError, "images of 16×16 pixels, these have 32×32", model, larger, weights=str(path))


def test_other_class_counts_are_refused(trained, tmp_path):
    tensors, path = load_file(trained[0]), tmp_path / "two.safetensors"
    metadata = read_metadata(trained[0])
    cut = {name: t[:2].contiguous() if "head.values" in name or name == "empty" else t for name, t in tensors.items()}
    save_file(cut, path, metadata={**metadata, "classes": "2"})
    refused(NotApplicableError, "trained for 2 classes, class 2 is none of them", target=2, weights=str(path))


def test_functions_as_targets_are_refused(trained):
    refused(TargetError, "must be a class, not a function", target=lambda o: o[:, 0], weights=str(trained[0]))


def read_metadata(path):
    from safetensors import safe_open

    with safe_open(str(path), framework="pt") as file:
        return file.metadata()


def test_missing_and_damaged_files_are_refused(trained, tmp_path):
    refused(WeightsError, "nowhere.safetensors is not a file", weights=str(tmp_path / "nowhere.safetensors"))
    damaged = tmp_path / "damaged.safetensors"
    damaged.write_bytes(trained[0].read_bytes()[:-50])
    refused(WeightsError, "damaged.safetensors cannot be read as safetensors", weights=str(damaged))
    other = tmp_path / "other.safetensors"
    save_file(small_vit().state_dict(), other)
    refused(WeightsError, "other.safetensors is not an explainer of vit_shapley", weights=str(other))
    part = {name: t for name, t in load_file(trained[0]).items() if "head.values" not in name}
    save_file(part, tmp_path / "part.safetensors", metadata=read_metadata(trained[0]))
    refused(WeightsError, "is incomplete or damaged", weights=str(tmp_path / "part.safetensors"))


def test_packaged_explainers_are_small_and_have_a_card():
    found = list(packaged_explainers())
    assert [path.stem for path in found] == ["scenes"]
    for path in found:
        assert path.stat().st_size <= 3_000_000
        tensors, record = read_record(path)
        assert all(torch.isfinite(t).all() for t in tensors.values())
        assert record.model_hash in Path(path).with_suffix(".md").read_text(encoding="utf-8")


def test_scenes_needs_no_weights():
    loaded, scenes = vitrail.load("scenes"), Scenes("test", 12, pairs=True)
    images = scenes.batch(range(12))[0]
    e = vitrail.explain(loaded, images, "vit_shapley", target=[list(scene.classes) for scene in scenes])
    correct = 0
    for maps, scene in zip(e.maps, scenes, strict=True):
        for k in range(2):
            on, other = (maps[k][torch.from_numpy(scene.masks[j].copy())].mean() for j in (k, 1 - k))
            correct += bool(on > other)
    assert correct >= 20  # of 24
