"""Regions as targets: mean scores over pixels and masks, for segmentation, masks of queries and depth."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import vitrail
from tests.targets.target_models import build, pixels
from vitrail.errors import TargetError
from vitrail.targets import contrast, region
from vitrail.targets.output_reader import CallContext, OutputReader
from vitrail.targets.saved_values import BinaryMask

MASK = torch.zeros(64, 64)
MASK[10:30, 40:60] = 1


def upsampled(scores):
    return F.interpolate(scores, (64, 64), mode="bilinear", align_corners=False)


@pytest.mark.parametrize(("model", "config"), [
    ("SegformerForSemanticSegmentation", "Segformer"),
    ("BeitForSemanticSegmentation", "Beit"),
    ("DPTForSemanticSegmentation", "DPT"),
])  # fmt: skip
def test_region_equals_the_function_written_by_hand(model, config):
    module, images = build(model, config), pixels()

    def by_hand(output):
        scores = upsampled(output.logits)
        inside = scores[:, 2, 10:30, 40:60].mean((-2, -1))
        return torch.stack([inside, scores[:, 1, 33, 7], inside - scores[:, 0, 10:30, 40:60].mean((-2, -1))], 1)

    targets = [[region(MASK, 2), region((7, 33), 1), contrast(region(MASK, 2), region(MASK, 0))]]
    found = vitrail.explain(module, images, "gradient_x_input", target=targets)
    expected = vitrail.explain(module, images, "gradient_x_input", target=by_hand)
    torch.testing.assert_close(found.grid, expected.grid, rtol=1e-8, atol=1e-12)
    assert float(found.grid.std()) > 0


@pytest.mark.parametrize(("model", "config"), [
    ("Mask2FormerForUniversalSegmentation", "Mask2Former"),
    pytest.param("MaskFormerForInstanceSegmentation", "MaskFormer", marks=pytest.mark.slow),
])  # fmt: skip
def test_mask_of_the_query_that_leads_in_the_region(model, config):
    module, images = build(model, config), pixels()
    with torch.no_grad():
        output = module(images)
    masks = upsampled(output.masks_queries_logits)
    share = output.class_queries_logits.softmax(-1)[..., 3]
    inside = F.interpolate(output.masks_queries_logits.sigmoid(), (64, 64), mode="bilinear")[..., 10:30, 40:60]
    expected = (inside.mean((-2, -1)) * share).argmax(1)
    e = vitrail.explain(module, images, "gradient_x_input", target=region(MASK, 3))
    assert [row[0].pinned.query for row in e.named_targets] == expected.tolist()
    for i, row in enumerate(e.named_targets):
        value = row[0].pinned.values(OutputReader(output, CallContext(module, size=(64, 64))))[i]
        torch.testing.assert_close(value, masks[i, expected[i], 10:30, 40:60].mean())


def test_depth_of_a_pixel_and_of_a_region():
    module, images = copy.deepcopy(build("DPTForDepthEstimation", "DPT")), pixels()
    with torch.no_grad():
        module.head.head[4].bias.fill_(5.0)  # depth ends in a ReLU

    def by_hand(output):
        depth = output.predicted_depth
        return torch.stack([depth[:, 20, 50], depth[:, 10:30, 40:60].mean((-2, -1))], 1)

    e = vitrail.explain(module, images, "gradient_x_input", target=[[region((50, 20)), region(MASK)]])
    expected = vitrail.explain(module, images, "gradient_x_input", target=by_hand)
    torch.testing.assert_close(e.grid, expected.grid, rtol=1e-8, atol=1e-12)
    assert e.label(0, 0) == "depth, 1 pixel"


@pytest.mark.filterwarnings("ignore::vitrail.errors.MapWarning")
def test_the_label_of_a_region_is_the_likeliest_one_and_stays():
    class Patches(torch.nn.Module):
        """Each pixel's class 1 is its own brightness, class 0 is constant."""

        def forward(self, x):
            own = F.avg_pool2d(x.mean(1, keepdim=True), 8)
            return {"logits": torch.cat([torch.full_like(own, 0.2), own], 1)}

    image = torch.zeros(2, 3, 32, 32)
    image[:, :, 8:16, 16:24] = 1
    image[1] *= 0.1  # class 0 leads in the second image
    e = vitrail.explain(Patches(), image, "gradient_x_input", target=region(image[0, 0]))
    assert [row[0].pinned.label for row in e.named_targets] == [1, 0]
    peak = int(e.maps[0, 0].argmax())
    assert 8 <= peak // 32 < 16
    assert 16 <= peak % 32 < 24
    assert bool(e.constant[1, 0])


def test_a_mask_in_the_size_of_the_original_image():
    from PIL import Image

    class Seen(torch.nn.Module):
        def forward(self, x):
            return {"logits": x[:, :2]}

    rng = np.random.default_rng(0)
    photo = Image.fromarray(rng.integers(0, 255, (64, 128, 3), dtype=np.uint8))
    prepare = vitrail.Preprocess((32, 32), crop=1.0)
    mask = np.zeros((64, 128), bool)
    mask[0:32, 64:96] = True  # the upper right quarter of the part that the model sees
    e = vitrail.explain(Seen(), photo, "occlusion", target=region(mask, 1), preprocess=prepare)
    where = e.named_targets[0][0].pinned.where.tensor()
    expected = torch.zeros(32, 32, dtype=torch.bool)
    expected[:16, 16:] = True
    assert torch.equal(where, expected)
    e = vitrail.explain(Seen(), photo, "occlusion", target=region((65, 1), 1), preprocess=prepare)
    assert e.named_targets[0][0].pinned.where.tensor()[0, 16]
    with pytest.raises(TargetError, match=r"outside of the image, which has 128×64 pixels"):
        vitrail.explain(Seen(), photo, "occlusion", target=region((3, 1), 1), preprocess=prepare)


def test_masks_are_values():
    mask = torch.rand(7, 9, generator=torch.Generator().manual_seed(0)) > 0.5
    saved = BinaryMask.of(mask)
    assert torch.equal(saved.tensor(), mask)
    assert saved == BinaryMask.of(mask.numpy())
    assert saved.count == int(mask.sum())
    assert torch.equal(BinaryMask.of(~mask).tensor(), ~mask)


@pytest.mark.parametrize(("where", "message"), [
    (torch.zeros(64, 64), r"the mask of shape \(64, 64\) is empty"),
    (torch.ones(3, 64, 64), "not one of a single image"),
    ((-1, 3), "numbers from 0"),
    (None, "give a pixel"),
])  # fmt: skip
def test_regions_that_are_none_are_refused(where, message):
    with pytest.raises(TargetError, match=message):
        region(where)


@pytest.mark.parametrize(("target", "message"), [
    (region((64, 3)), "lies outside of the image, which has 64×64 pixels"),
    (region(torch.ones(32, 32)), "must have the size of the model's input, 64×64"),
    (region((3, 3), 9), "label 9 does not exist"),
    (region(query=2), "predicts no mask for each query"),
])  # fmt: skip
def test_regions_that_do_not_exist_are_refused(target, message):
    with pytest.raises(TargetError, match=message):
        vitrail.explain(
            build("SegformerForSemanticSegmentation", "Segformer"), pixels(1), "gradient_x_input", target=target
        )
