"""Boxes as targets: the value of the query that was asked for, for every detector."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
import transformers

import vitrail
from tests.targets.target_models import build, pixels, tokenizer
from vitrail.errors import TargetError
from vitrail.targets import box, contrast, detections
from vitrail.targets.boxes import shares_of
from vitrail.targets.output_reader import CallContext, OutputReader

DETECTORS = {
    "Yolos": "YolosForObjectDetection",
    "Detr": "DetrForObjectDetection",
    "ConditionalDetr": "ConditionalDetrForObjectDetection",
    "RTDetr": "RTDetrForObjectDetection",
    "DeformableDetr": "DeformableDetrForObjectDetection",
}
SLOW = ("ConditionalDetr", "RTDetr", "DeformableDetr")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name for name in DETECTORS]
)
def test_box_equals_the_function_written_by_hand(name):
    model, images = build(DETECTORS[name], name), pixels()
    targets = [[box(2, label=1), box(4, coordinate="x0"), contrast(box(2, label=1), box(3, label=0))]]

    def by_hand(output):
        cx, _, width, _ = output.pred_boxes[:, 4].unbind(-1)
        first, second = output.logits[:, 2, 1], output.logits[:, 3, 0]
        return torch.stack([first, cx - width / 2, first - second], 1)

    for method in ("gradient_x_input", "occlusion"):
        found = vitrail.explain(model, images, method, target=targets)
        expected = vitrail.explain(model, images, method, target=by_hand)
        torch.testing.assert_close(found.grid, expected.grid, rtol=1e-9, atol=1e-12)
        assert float(found.grid.std()) > 0


def test_nearest_box_is_the_one_of_that_query_in_each_image():
    model, images = build("YolosForObjectDetection", "Yolos"), pixels(3)
    with torch.no_grad():
        output = model(images)
    boxes = OutputReader(output, CallContext(model)).boxes() * 64
    for query in (1, 4):
        asked = [box(nearest=boxes[i, query].tolist()) for i in range(3)]
        e = vitrail.explain(model, images, "gradient_x_input", target=asked)
        pinned = [row[0].pinned for row in e.named_targets]
        # queries of a random detector may share a box, so the boxes are compared
        for i, one in enumerate(pinned):
            torch.testing.assert_close(boxes[i, one.query], boxes[i, query])
            labels = output.logits[i, one.query, :-1]
            assert one.label == int(labels.argmax())


def test_perturbed_images_keep_the_query_and_label_of_the_image():
    class Switching(torch.nn.Module):
        """The box of query 0 leaves when the first patch is dark, and query 1 takes its place."""

        def forward(self, x):
            bright = x[:, 0, :8, :8].mean((-2, -1))
            boxes = torch.full((len(x), 2, 4), 0.5, dtype=x.dtype)
            boxes[:, 0, 0] = torch.where(bright > 0.5, 0.5, 5.0)
            scores = torch.stack([torch.stack([bright, -bright], 1), torch.stack([bright * 0, bright * 0 + 9], 1)], 1)
            return {"logits": scores, "pred_boxes": boxes}

    image = torch.ones(1, 3, 32, 32)
    e = vitrail.explain(Switching(), image, "occlusion", target=box(nearest=(8, 8, 24, 24)))
    assert e.named_targets[0][0].pinned == box(0, label=0)
    relevance = e.maps[0, 0]
    assert float(relevance[:8, :8].mean()) > 10 * float(relevance[16:, 16:].abs().mean())


def test_ten_boxes_take_one_forward_pass():
    model, images, calls = build("YolosForObjectDetection", "Yolos"), pixels(1), []
    row = [[box(q % 6, label=q % 5) for q in range(10)]]
    vitrail.explain(model, images, "transformer_mm", target=row)  # measures the structure
    handle = model.register_forward_hook(lambda *_: calls.append(1))
    try:
        e = vitrail.explain(model, images, "transformer_mm", target=row)
        one = len(calls)
        vitrail.explain(model, images, "transformer_mm", target=box(0, label=0))
        assert one == len(calls) - one
    finally:
        handle.remove()
    assert e.maps.shape[:2] == (1, 10)
    assert e.label(0, 7) == "class 2, query 1"


def test_detections_are_listed_by_probability():
    model, images = build("DetrForObjectDetection", "Detr"), pixels()
    found = detections(model, images, count=4)
    with torch.no_grad():
        output = model(images)
    probabilities = output.logits.softmax(-1)[..., :-1]
    for i, listed in enumerate(found):
        assert [d.probability for d in listed] == sorted((d.probability for d in listed), reverse=True)
        for one in listed:
            assert one.probability == pytest.approx(float(probabilities[i, one.query, one.label]))
            cx, cy, width, height = output.pred_boxes[i, one.query].tolist()
            corners = (cx - width / 2, cy - height / 2, cx + width / 2, cy + height / 2)
            assert one.box == pytest.approx([64 * v for v in corners])


@pytest.mark.parametrize(("arguments", "message"), [
    ({}, "give one of query= and nearest="),
    ({"query": 1, "nearest": (0, 0, 1, 1)}, "give one of query= and nearest="),
    ({"query": -1}, "query=-1 must be the number"),
    ({"nearest": (5, 5, 1, 9)}, "x0 < x1"),
    ({"query": 1, "coordinate": "left"}, "is not one of x0"),
    ({"query": 1, "coordinate": "x0", "label": 2}, "not both"),
])  # fmt: skip
def test_boxes_that_are_none_are_refused(arguments, message):
    with pytest.raises(TargetError, match=message):
        box(**arguments)


@pytest.mark.parametrize(("target", "message"), [
    (box(99), "query 99 does not exist: YolosForObjectDetection has 6, 0 to 5"),
    (box(1, label=9), "label 9 does not exist: the output has 5 labels, 0 to 4"),
    (box(nearest=(100, 0, 120, 9)), "lies outside of the image, which has 64×64 pixels"),
    (box(1, label="cat"), "class names are unknown"),
    (contrast(box(1, coordinate="x0"), "others"), "has no other candidates"),
])  # fmt: skip
def test_boxes_that_do_not_exist_are_refused(target, message):
    model = build("YolosForObjectDetection", "Yolos")
    with pytest.raises(TargetError, match=message):
        vitrail.explain(model, pixels(1), "gradient_x_input", target=target)


def test_a_box_of_a_classifier_is_refused():
    from vitrail.testing import tiny_vit

    with pytest.raises(TargetError, match="holds no boxes: a box is a target of detectors"):
        vitrail.explain(tiny_vit(), torch.zeros(1, 3, 32, 32), "rollout", target=box(1))


def test_corners_of_cropped_images():
    geometry = vitrail.Preprocess((32, 32), crop=1.0).geometry(64, 128)
    assert shares_of((32, 0, 96, 64), (32, 32), geometry) == pytest.approx((0, 0, 1, 1))
    with pytest.raises(TargetError, match="lies outside of the image"):
        shares_of((0, 0, 20, 64), (32, 32), geometry)


def test_a_query_that_sees_one_patch_has_its_map_there():
    """Without attention, each query of OWL-ViT reads the patch of the same number."""
    model = copy.deepcopy(build("OwlViTForObjectDetection", "OwlViT"))
    with torch.no_grad():
        for layer in model.owlvit.vision_model.encoder.layers:
            layer.self_attn.out_proj.weight.zero_()
            layer.self_attn.out_proj.bias.zero_()
    row = [[box(q, label="a dog", processor=tokenizer()) for q in (0, 6, 11)]]
    e = vitrail.explain(model, pixels(2), "gradient_x_input", target=row)
    for b in range(2):
        for k, query in enumerate((0, 6, 11)):
            patches = e.grid[b, k].abs().unflatten(0, (4, 16)).unflatten(2, (4, 16)).sum((1, 3)).flatten()
            assert float(patches[query]) > 0
            patches[query] = 0
            assert float(patches.max()) == 0


def test_boxes_by_the_models_own_processor_for_photographs():
    from PIL import Image

    processor = transformers.YolosImageProcessor(size={"height": 64, "width": 64}, do_pad=False)
    photo = Image.fromarray(np.random.default_rng(0).integers(0, 255, (64, 64, 3), dtype=np.uint8))
    model = copy.deepcopy(build("YolosForObjectDetection", "Yolos")).float()
    e = vitrail.explain(model, photo, "gradient_x_input", target=box(1, processor=processor))
    expected = processor(photo, return_tensors="pt")["pixel_values"]
    torch.testing.assert_close(e.images, expected, rtol=1e-4, atol=1e-4)
