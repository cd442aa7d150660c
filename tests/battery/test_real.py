"""Real weights on real pictures: the maps lie on the animal that was asked for. Skipped where they are absent."""

from __future__ import annotations

import pytest

import vitrail
from vitrail.models.preprocess import open_image

# Where the animals are in the model's 224×224 view: top, left, bottom, right.
PICTURES = {
    "el2.png": {"zebra": (90, 95, 205, 224), "African elephant": (0, 0, 115, 165)},
    "catdog.png": {"bull mastiff": (0, 60, 115, 180), "tiger cat": (120, 30, 224, 224)},
}


@pytest.fixture(scope="module")
def model(assets):
    return vitrail.load("timm:vit_tiny_patch16_224", weights=assets / "weights" / "vit_tiny_patch16_224.safetensors")


@pytest.mark.parametrize("picture", PICTURES)
def test_maps_lie_on_the_asked_animal(model, assets, picture):
    places = PICTURES[picture]
    methods = ["transformer_mm", "vtranm"]
    found = vitrail.explain(model, assets / "samples" / picture, methods=methods, target=[list(places)])
    for method in methods:
        maps = found[method].maps[0]
        inside = {}
        for k, name in enumerate(places):
            for other, (top, left, bottom, right) in places.items():
                inside[name, other] = float(maps[k, top:bottom, left:right].mean())
            row, column = divmod(int(maps[k].argmax()), 224)
            top, left, bottom, right = places[name]
            assert top <= row < bottom, (method, name)
            assert left <= column < right, (method, name)
        first, second = places
        assert inside[first, first] > 1.2 * inside[first, second], method
        assert inside[second, second] > 1.2 * inside[second, first], method


def test_class_blind_methods_do_not_change_with_the_class(model, assets):
    found = vitrail.explain(
        model, assets / "samples" / "catdog.png", methods=["rollout", "raw_attention"], target=["bull mastiff"]
    )
    other = vitrail.explain(
        model, assets / "samples" / "catdog.png", methods=["rollout", "raw_attention"], target=["tiger cat"]
    )
    for name in found:
        assert (found[name].grid - other[name].grid).abs().max() < 1e-6


@pytest.mark.slow
def test_the_model_is_as_good_as_its_card(model, assets):
    """Preprocessing, class order and weights together: top-1 on a few real images."""
    import csv

    import torch

    with (assets / "imagenet" / "classes.csv").open() as file:
        wnids = {row["wnid"]: int(row["index"]) for row in csv.DictReader(file)}
    paths = sorted((assets / "imagenet" / "val").glob("*/*.JPEG"))[::10]
    with torch.no_grad():
        predicted = torch.cat([model.module(model.preprocess(open_image(p))[None]).argmax(-1) for p in paths])
    truth = torch.tensor([wnids[p.parent.name] for p in paths])
    assert float((predicted == truth).float().mean()) > 0.65
    found = vitrail.explain(model, paths[:10], "raw_attention")
    assert torch.equal(found.targets[:, 0], predicted[:10]), "files that are explained are read in the same way"
