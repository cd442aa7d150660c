"""Perturbation tests read a model's scores as the model or the user states them."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from vitrail.errors import OptionError, TargetError
from vitrail.fast.fast_passes import FastPasses
from vitrail.models.loaded import describe
from vitrail.models.preprocess import Preprocess
from vitrail.scores import Evaluator
from vitrail.testing import tiny_vit

PREPROCESS = Preprocess((32, 32), (0.5,) * 3, (0.5,) * 3)


def curves(model: nn.Module, **options):
    """Probability of class 2 as patches are removed, shape (images, levels)."""
    images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    maps = {"map": torch.rand(2, 32, 32, generator=torch.Generator().manual_seed(1))}
    evaluate = Evaluator(model, "chefer21", preprocess=PREPROCESS, **options)
    return evaluate.log_probs(images).exp(), evaluate(images, maps, predicted=torch.tensor([2, 2]))


def test_a_sigmoid_is_stated_by_the_user_or_by_the_model():
    model = tiny_vit().eval()
    images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        logits = model(images)
    torch.testing.assert_close(curves(model)[0], logits.softmax(1))
    torch.testing.assert_close(curves(model, scores="sigmoid")[0], logits.sigmoid())
    torch.testing.assert_close(curves(replace(describe(model), scores="sigmoid"))[0], logits.sigmoid())
    model.config = SimpleNamespace(problem_type="multi_label_classification")
    torch.testing.assert_close(curves(model)[0], logits.sigmoid())


def test_curves_of_a_sigmoid_do_not_depend_on_other_classes():
    one, other = tiny_vit().eval(), tiny_vit().eval()
    with torch.no_grad():
        other.head.weight[3], other.head.bias[3] = 5.0, -7.0
    found = [curves(model, scores="sigmoid")[1] for model in (one, other)]
    softmax = [curves(model)[1] for model in (one, other)]
    assert found[0].curves.keys() == found[1].curves.keys()
    for key in found[0].curves:  # the first column is the probability of the explained class
        same, mixed = ([one.curves[key].outputs[..., 0] for one in both] for both in (found, softmax))
        torch.testing.assert_close(*same)
        assert not torch.allclose(*mixed, atol=1e-4)


def test_a_regression_has_no_probabilities():
    with pytest.raises(TargetError, match="values of a regression"):
        curves(tiny_vit().eval(), scores="identity")
    with pytest.raises(OptionError, match="softmin"):
        curves(tiny_vit().eval(), scores="softmin")


def test_tokens_are_dropped_from_a_model_whose_patch_embedding_is_a_product(monkeypatch):
    """As on a GPU in half precision."""
    images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    maps = {"map": torch.rand(2, 32, 32, generator=torch.Generator().manual_seed(1))}

    def scores():
        evaluate = Evaluator(tiny_vit().eval(), "srg-tokens", preprocess=PREPROCESS)
        records = evaluate(images, maps, predicted=torch.tensor([2, 2]))
        return records.scores(evaluate.presets[0], "map")["srg(tokens)"]

    expected = scores()
    monkeypatch.setattr(FastPasses, "on", lambda self, _: self._patches.used())
    torch.testing.assert_close(scores(), expected, rtol=1e-4, atol=1e-6)
