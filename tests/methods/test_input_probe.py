"""Gradients at the unchanged inputs: one forward pass for the target and all of its maps."""

from __future__ import annotations

import torch

import vitrail
from vitrail.models.plain_detector import PlainDetector
from vitrail.targets import box


def detector():
    torch.manual_seed(0)
    return PlainDetector(size=32, width=16, depth=1, decoder_depth=1, queries=10).double().eval()


def test_ten_boxes_of_a_detector_share_one_forward_pass():
    model, images = detector(), torch.randn(2, 3, 32, 32, dtype=torch.float64)
    row = [[box(q, label=1) for q in range(10)]]
    vitrail.explain(model, images, "gradient_x_input", target=row)  # what is measured once a model is known now
    calls = []
    handle = model.class_head.register_forward_hook(lambda *_: calls.append(1))
    try:
        found = vitrail.explain(model, images, "gradient_x_input", target=row)
    finally:
        handle.remove()
    assert len(calls) == 1
    leaf = images.clone().requires_grad_()
    scores = model(leaf)["logits"][:, :, 1]
    for q in range(10):
        (gradient,) = torch.autograd.grad(scores[:, q].sum(), leaf, retain_graph=True)
        torch.testing.assert_close(found.grid[:, q], (gradient * images).sum(1))
    assert found.logits is None or not found.logits.requires_grad


def test_pieces_have_the_same_maps():
    model, images = detector(), torch.randn(3, 3, 32, 32, dtype=torch.float64)
    row = [[box(0, label=1), box(4, label=2)]]
    whole = vitrail.explain(model, images, "gradient_x_input", target=row)
    shared = vitrail.explain(model, images, methods=["gradient_x_input", "transformer_mm"], target=row)
    torch.testing.assert_close(whole.grid, shared["gradient_x_input"].grid)
    parts = vitrail.explain(model, images, "gradient_x_input", target=row, batch_size=2)
    torch.testing.assert_close(whole.grid, parts.grid)
