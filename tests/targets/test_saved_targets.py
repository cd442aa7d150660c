"""Targets print themselves, and are read back from manifests."""

from __future__ import annotations

import json

import pytest
import torch

import vitrail
from tests.targets.target_models import build, pixels
from vitrail import ClassGroup
from vitrail.errors import TargetError
from vitrail.targets import box, contrast, from_dict, prompt, region, saved_targets, similar_to
from vitrail.testing import tiny_vit

TARGETS = [
    box(3), box(nearest=(1, 2, 3, 4), label="cat"), box(2, label=ClassGroup([1, 2], "pets")),
    box(1, coordinate="width"), region((3, 4), 1), region(torch.eye(5)), region(query=2),
    prompt("a dog"), prompt("dog", ["cat", "bird"], template="a photo of {}"), prompt(1, against=0),
    similar_to([1.0, 2.5]), contrast(1, "others"), contrast("cat", [2, ClassGroup([0, 1])]),
    contrast(prompt("a dog"), prompt("a cat")),
]  # fmt: skip


@pytest.mark.parametrize("target", TARGETS, ids=str)
def test_targets_are_values_that_can_be_saved(target):
    again = from_dict(json.loads(json.dumps(target.to_dict())))
    assert again == target
    assert hash(again) == hash(target)
    assert str(again) == str(target)


def test_a_saved_explanation_is_explained_again(tmp_path):
    model, images = build("YolosForObjectDetection", "Yolos"), pixels(2)
    row = [[box(nearest=(4, 4, 60, 60)), contrast(box(2, label=1), "others")]]
    e = vitrail.explain(model, images, "gradient_x_input", target=row)
    again = vitrail.explain(model, images, "gradient_x_input", target=saved_targets(e.save(tmp_path)))
    assert torch.equal(e.grid, again.grid)
    manifest = json.loads((tmp_path / "manifest.json").read_text(encoding="utf-8"))
    assert manifest["target_names"] == [[one.title for one in row] for row in e.named_targets]
    assert manifest["named_targets"][1][0]["box"] == list(e.named_targets[1][0].corners)


def test_explanations_of_classes_have_no_named_targets(tmp_path):
    vitrail.explain(tiny_vit(), torch.zeros(1, 3, 32, 32), "rollout").save(tmp_path)
    with pytest.raises(TargetError, match="explains classes or a function"):
        saved_targets(tmp_path)


def test_functions_and_unknown_kinds_are_not_read():
    with pytest.raises(TargetError, match="whose code is not saved"):
        from_dict(contrast(torch.sum, 1).to_dict())
    with pytest.raises(TargetError, match="'cube' is not one of the kinds of targets"):
        from_dict({"kind": "cube"})


def test_boxes_are_outlined_on_overlays():
    model, images = build("YolosForObjectDetection", "Yolos"), pixels(1)
    e = vitrail.explain(model, images, "gradient_x_input", target=box(1))
    x0, y0, x1, y1 = (64 * v for v in e.named_targets[0][0].corners)
    left, row = max(0, int(x0)), int((max(y0, 0) + min(y1, 64)) / 2)
    assert e.overlay().getpixel((left, row)) == (255, 255, 255)
    assert x1 > x0
    assert len(e.figure().axes[0].patches) == 2
