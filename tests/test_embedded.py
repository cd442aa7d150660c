"""The models that come with the package are as good as their cards say."""

from __future__ import annotations

from importlib.resources import files

import pytest
import torch

import vitrail
from vitrail.data import CLASSES, Scenes
from vitrail.models.embedded import EMBEDDED
from vitrail.models.plain import PlainViT

COUNT = 150


def answers(model, scenes):
    with torch.no_grad():
        return model.module(scenes.batch(range(len(scenes)))[0])


def size_of(name):
    return len(files("vitrail.models").joinpath("weights", f"{name}.safetensors").read_bytes())


@pytest.mark.parametrize("name", EMBEDDED)
def test_weights_are_in_the_package(name):
    about = vitrail.load(name)
    assert type(about.module) is PlainViT
    assert not about.module.training
    assert sum(p.numel() for p in about.module.parameters()) <= 4_000_000


@pytest.mark.parametrize("name", EMBEDDED)
def test_scenes_know_their_classes_and_size(name):
    about = vitrail.load(name)
    assert about.classes == CLASSES
    assert about.preprocess.size == (128, 128)


def test_weights_stay_small():
    assert sum(size_of(name) for name in EMBEDDED) <= 12_000_000


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


def per_pixel(relevance, scene, label):
    """Mean relevance on a class and off it."""
    from vitrail.demo import mask_of

    mask = torch.from_numpy(mask_of(scene, label).copy())
    return relevance[mask].mean(), relevance[~mask].mean()


@pytest.mark.parametrize("method", ["transformer_mm", "vtranm"])
def test_single_objects_are_found(method):
    """Relevance per pixel on the object against the rest of the picture, scene by scene."""
    scenes = Scenes("test", 40, objects=1)
    images = scenes.batch(range(40))[0]
    targets = [scene.classes[0] for scene in scenes]
    maps = vitrail.explain(vitrail.load("scenes"), images, method, target=targets).maps[:, 0]
    better = 0
    for relevance, scene, target in zip(maps, scenes, targets, strict=True):
        on, off = per_pixel(relevance, scene, target)
        better += bool(on > 3 * off)
    assert better >= 36


@pytest.mark.parametrize("method", ["transformer_mm", "vtranm"])
def test_of_two_objects_the_asked_one_is_found(method):
    """Relevance per pixel on the asked object against the other one, for both objects of a pair."""
    scenes = Scenes("test", 40, pairs=True)
    images = scenes.batch(range(40))[0]
    maps = vitrail.explain(vitrail.load("scenes"), images, method, target=[list(s.classes) for s in scenes]).maps
    wins = 0
    for pair, scene in zip(maps, scenes, strict=True):
        for relevance, mine, other in zip(pair, scene.classes, reversed(scene.classes), strict=True):
            wins += bool(per_pixel(relevance, scene, mine)[0] > per_pixel(relevance, scene, other)[0])
    assert wins >= 60  # of 80
