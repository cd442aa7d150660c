"""Contrasts: the difference of two targets of any kind, in values and in maps."""

from __future__ import annotations

import pytest
import torch

import vitrail
from tests.targets.target_models import build, pixels
from vitrail import ClassGroup
from vitrail.errors import TargetError
from vitrail.targets import box, contrast, region
from vitrail.testing import tiny_vit

IMAGES = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def model():
    return tiny_vit().double()


@pytest.mark.parametrize(("target", "by_hand"), [
    (contrast(1, 3), lambda z: z[:, 1] - z[:, 3]),
    (contrast(1, [3, 4]), lambda z: z[:, 1] - z[:, [3, 4]].logsumexp(1)),
    (contrast(ClassGroup([0, 1]), 2), lambda z: z[:, [0, 1]].logsumexp(1) - z[:, 2]),
    (contrast(lambda z: z[:, 2] ** 2, 0), lambda z: z[:, 2] ** 2 - z[:, 0]),
])  # fmt: skip
@pytest.mark.parametrize("method", ["gradient_x_input", "transformer_mm", "occlusion"])
def test_contrast_is_the_difference_of_functions(target, by_hand, method):
    found = vitrail.explain(model(), IMAGES, method, target=target)
    expected = vitrail.explain(model(), IMAGES, method, target=by_hand)
    torch.testing.assert_close(found.grid, expected.grid, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("method", ["gradient_x_input", "attnlrp"])
def test_map_of_a_contrast_is_the_difference_of_the_maps(method):
    def grid(target):
        return vitrail.explain(model(), IMAGES, method, target=target).grid

    torch.testing.assert_close(grid(contrast(1, 3)), grid(lambda z: z[:, 1]) - grid(lambda z: z[:, 3]))


def test_others_are_the_next_candidates_of_each_image():
    module = model()
    with torch.no_grad():
        logits = module(IMAGES)
    order = logits.argsort(1, descending=True)
    e = vitrail.explain(module, IMAGES, "gradient_x_input", target=contrast(None, "others", candidates=2))
    for i, row in enumerate(e.named_targets):
        assert row[0].pinned.first.label == int(order[i, 0])
        assert [one.label for one in row[0].pinned.against] == order[i, 1:3].tolist()


def test_others_of_a_group_leave_it_out():
    e = vitrail.explain(model(), IMAGES, "gradient_x_input", target=contrast(ClassGroup([0, 1]), "others"))
    for row in e.named_targets:
        assert not {0, 1} & {one.label for one in row[0].pinned.against}


def test_rows_mix_classes_and_contrasts_and_go_by_image():
    module = model()
    rows = [[1, contrast(1, 2)], [3, contrast(3, 4)]]
    e = vitrail.explain(module, IMAGES, "gradient_x_input", target=rows, batch_size=1)
    assert [[str(one.asked) for one in row] for row in e.named_targets] == [["1", "contrast(1, 2)"],
                                                                           ["3", "contrast(3, 4)"]]  # fmt: skip
    expected = vitrail.explain(module, IMAGES, "gradient_x_input", target=lambda z: z[:, 3])
    torch.testing.assert_close(e.grid[1, 0], expected.grid[1, 0])


def test_copies_of_smoothing_keep_the_candidates_of_the_image():
    module = model()
    target = contrast(None, "others", candidates=1)
    pinned = vitrail.explain(module, IMAGES, "gradient_x_input", target=target).named_targets
    fixed = [row[0].pinned for row in pinned]
    found = vitrail.explain(module, IMAGES, "gradient_x_input", target=target, smooth="noise", smooth_noise=1.0)
    expected = vitrail.explain(module, IMAGES, "gradient_x_input", target=fixed, smooth="noise", smooth_noise=1.0)
    torch.testing.assert_close(found.grid, expected.grid)


def test_contrasts_print_themselves():
    assert str(contrast(box(3), "others")) == "contrast(box(query=3), 'others')"
    assert str(contrast(region((1, 2)), [region((3, 4)), "cat"])) == "contrast(region((1, 2)), [region((3, 4)), 'cat'])"


@pytest.mark.parametrize(("make", "message"), [
    (lambda: contrast(1, []), "at least one target"),
    (lambda: contrast(1.5, 2), "is no target"),
    (lambda: contrast(1, "others", candidates=0), "at least 1"),
])  # fmt: skip
def test_contrasts_of_nothing_are_refused(make, message):
    with pytest.raises(TargetError, match=message):
        make()


def test_a_class_that_does_not_exist_is_refused():
    with pytest.raises(TargetError, match="label 77 does not exist"):
        vitrail.explain(model(), IMAGES, "rollout", target=contrast(77, 1))


def test_other_labels_of_a_region_and_of_a_query():
    module = build("SegformerForSemanticSegmentation", "Segformer")
    e = vitrail.explain(module, pixels(1), "gradient_x_input", target=contrast(region((9, 9), 2), "others"))
    assert sorted(one.label for one in e.named_targets[0][0].pinned.against) == [0, 1, 3, 4]
    e = vitrail.explain(build("YolosForObjectDetection", "Yolos"), pixels(1), "gradient_x_input",
                        target=contrast(box(1, label=0), "others", candidates=3))  # fmt: skip
    assert all(one.query == 1 and one.label != 0 for one in e.named_targets[0][0].pinned.against)
