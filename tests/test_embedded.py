"""The models that come with the package are as good as their card says."""

from __future__ import annotations

from importlib.resources import files

import pytest
import torch

import vitrail
from vitrail.data import CLASSES, Scenes
from vitrail.models.embedded import EMBEDDED

COUNT = 150


def answers(model, scenes):
    with torch.no_grad():
        return model.module(scenes.batch(range(len(scenes)))[0])


@pytest.mark.parametrize("name", EMBEDDED)
def test_weights_and_names_are_in_the_package(name):
    assert files("vitrail.models").joinpath("weights", f"{name}.safetensors").is_file()
    about = vitrail.load(name)
    assert about.classes == CLASSES
    assert about.preprocess.size == (128, 128)
    assert not about.module.training
    assert sum(p.numel() for p in about.module.parameters()) < 4_000_000


def test_all_weights_together_stay_small():
    sizes = [len(files("vitrail.models").joinpath("weights", f"{n}.safetensors").read_bytes()) for n in EMBEDDED]
    assert sum(sizes) <= 12_000_000


@pytest.mark.parametrize("name", ["scenes", "scenes-gap"])
def test_accuracy(name):
    about = vitrail.load(name)
    one = Scenes("test", COUNT, objects=1)
    right = answers(about, one).argmax(1) == torch.tensor([scene.classes[0] for scene in one])
    assert float(right.float().mean()) >= 0.97
    pairs = Scenes("test", COUNT, pairs=True)
    top = answers(about, pairs).topk(2).indices.sort(-1).values
    both = top == torch.tensor([sorted(scene.classes) for scene in pairs])
    assert float(both.all(-1).float().mean()) >= 0.92


def test_the_tag_is_really_used():
    about = vitrail.load("scenes-tagged")
    accuracy = {}
    for tag in (None, False):
        scenes = Scenes("test", COUNT, objects=1, tagged=True, tag=tag)
        truth = torch.tensor([scene.classes[0] for scene in scenes])
        accuracy[tag] = float((answers(about, scenes).argmax(1) == truth).float().mean())
    assert accuracy[None] - accuracy[False] >= 0.3


def test_readouts_are_found_on_trained_weights():
    images = Scenes("test", 2).batch(range(2))[0]
    assert vitrail.explain(vitrail.load("scenes"), images, "rollout").anatomy["readout"] == "the CLS token"
    found = vitrail.explain(vitrail.load("scenes-gap"), images, methods=list(vitrail.methods()), target="top1")
    assert found["rollout"].anatomy["readout"] == "the mean of the patches"
    assert not any(e.flat.all() for e in found.values())


@pytest.mark.parametrize("method", ["transformer_mm", "vtranm"])
def test_single_objects_are_found(method):
    """Relevance per pixel on the object against the rest of the picture, scene by scene."""
    from vitrail.demo import mask_of

    scenes = Scenes("test", 40, objects=1)
    images = scenes.batch(range(40))[0]
    targets = [scene.classes[0] for scene in scenes]
    maps = vitrail.explain(vitrail.load("scenes"), images, method, target=targets).maps[:, 0]
    better = 0
    for relevance, scene, target in zip(maps, scenes, targets, strict=True):
        mask = torch.from_numpy(mask_of(scene, target).copy())
        better += bool(relevance[mask].mean() > 3 * relevance[~mask].mean())
    assert better >= 36
