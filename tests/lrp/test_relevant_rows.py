"""Relevance through few rows: the same as through all of them."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from timm.models.vision_transformer import VisionTransformer

import vitrail
from vitrail.lrp import relevant_rows, rules
from vitrail.lrp.ops import Linear, Samples


@pytest.mark.parametrize("rule", [rules.linear_joint, rules.linear_split, rules.gamma_generalised(0.1)])
@pytest.mark.parametrize("rows", [[], [0], [2, 5]])
def test_rows_without_relevance_change_nothing(monkeypatch, rule, rows):
    torch.manual_seed(0)
    x, W, bias = torch.randn(2, 4, 6).double(), torch.randn(5, 6).double(), torch.randn(5).double()
    R = torch.zeros(8, 5).double()
    R[rows] = torch.rand(len(rows), 5).double()
    op = Linear(lambda x: F.linear(x, W, bias), F.linear, torch.matmul, W, bias, Samples(2), rows=True)

    def found():
        leaf = x.clone().requires_grad_()
        return torch.autograd.grad(rule(op, leaf), leaf, R.view(2, 4, 5))[0]

    assert relevant_rows.few_rows(R).tolist() == rows
    few = found()
    monkeypatch.setenv("VITRAIL_PLAIN", "1")
    assert relevant_rows.few_rows(R) is None
    assert torch.allclose(few, found(), rtol=1e-12)
    assert bool(few.any()) == bool(rows)


@pytest.mark.parametrize("method", ["transformer_attribution", "lrp", "attnlrp"])
def test_maps_are_those_of_all_rows(monkeypatch, method):
    torch.manual_seed(0)
    model = VisionTransformer(img_size=32, patch_size=8, embed_dim=24, depth=2, num_heads=3, num_classes=5)
    model, images = model.double().eval(), torch.randn(2, 3, 32, 32).double()
    reduced, own = [], relevant_rows.few_rows
    monkeypatch.setattr(relevant_rows, "few_rows", lambda R: reduced.append(own(R)) or reduced[-1])
    few = vitrail.explain(model, images, method, target=1).grid
    assert sum(rows is not None for rows in reduced) == 3  # the last block's MLP and output projection
    monkeypatch.setenv("VITRAIL_PLAIN", "1")
    assert torch.allclose(few, vitrail.explain(model, images, method, target=1).grid, rtol=1e-8)
