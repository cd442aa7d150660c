"""The models that come with the package are as good as their cards say."""

from __future__ import annotations

import os
from importlib.resources import files
from pathlib import Path

import pytest
import torch

import vitrail
from vitrail.data import CLASSES, Scenes
from vitrail.models.embedded import EMBEDDED
from vitrail.models.plain_vit import PlainViT

COUNT = 150
SCENES = ("scenes", "scenes-gap", "scenes-tagged")
ASSETS = Path(os.environ.get("VITRAIL_ASSETS", Path(__file__).resolve().parents[2] / "shared" / "assets"))


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


@pytest.mark.parametrize("name", SCENES)
def test_scenes_know_their_classes_and_size(name):
    about = vitrail.load(name)
    assert about.classes == CLASSES
    assert about.preprocess.size == (128, 128)


def test_weights_stay_small():
    assert sum(size_of(name) for name in SCENES) <= 12_000_000
    assert size_of("cifar10") <= 8_000_000


def test_cifar10_knows_its_classes_and_size():
    about = vitrail.load("cifar10")
    assert about.preprocess.size == (32, 32)
    assert about.classes[0] == "airplane"
    assert len(about.classes) == 10
    found = vitrail.explain(about, torch.randn(1, 3, 32, 32), "rollout")
    assert found.structure["tokens"] == "65 = 1 prefix + 8×8 patches"
    assert found.structure["readout"] == "the CLS token"


@pytest.mark.skipif(not (ASSETS / "cifar10").is_dir(), reason="CIFAR-10 is not on this machine")
def test_cifar10_accuracy():
    from vitrail.data import CIFAR10

    about = vitrail.load("cifar10")
    data = CIFAR10(ASSETS / "cifar10" / "cifar10_jpeg.tar.xz", split="test")
    samples = [data[i] for i in range(0, len(data), 20)]
    with torch.no_grad():
        logits = about.module(torch.stack([about.preprocess(sample.image) for sample in samples]))
    right = logits.argmax(1) == torch.tensor([sample.label for sample in samples])
    assert float(right.float().mean()) >= 0.91


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
    assert vitrail.explain(vitrail.load("scenes"), images, "rollout").structure["readout"] == "the CLS token"
    single = [m.name for m in vitrail.methods().values() if m.family in ("attention", "gradient", "relevance")]
    found = vitrail.explain(vitrail.load("scenes-gap"), images, methods=single, target="top1")
    assert found["rollout"].structure["readout"] == "the mean of the patches"
    assert not any(e.flat.all() for e in found.values())


def per_pixel(relevance, scene, label):
    """Mean relevance on a class and off it."""
    mask = torch.from_numpy(scene.class_mask(label).copy())
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
