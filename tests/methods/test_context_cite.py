"""ContextCite: the lasso against coordinate descent, known additive scores, units of texts and standard errors."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import vitrail
from tests.battery.decoders import decoder, words
from tests.text.language import MarkedCopy, word_tokens
from vitrail.errors import OptionError
from vitrail.methods.context_cite import lasso
from vitrail.testing import tiny_vit

pytest.importorskip("transformers")


def coordinate_descent(present, scores, strength):
    """The same minimum by cyclic coordinate descent in numpy."""
    X, y = present.numpy(), scores.numpy()
    scale, spread = X.std(0), y.std()
    Z, t = (X - X.mean(0)) / scale, (y - y.mean()) / spread
    w = np.zeros(Z.shape[1])
    for _ in range(2000):
        for j in range(len(w)):
            rest = t - Z @ w + Z[:, j] * w[j]
            c = Z[:, j] @ rest / len(t)
            w[j] = np.sign(c) * max(abs(c) - strength, 0)
    return w / scale * spread


@pytest.mark.parametrize("strength", [0.0, 0.01, 0.2])
def test_the_lasso_finds_the_minimum(strength):
    generator = torch.Generator().manual_seed(0)
    present = (torch.rand(40, 9, generator=generator) < 0.5).double()
    scores = (
        present @ torch.randn(9, generator=generator).double() + 0.3 * torch.randn(40, generator=generator).double()
    )
    found = lasso(present, scores[None], strength)
    expected = coordinate_descent(present, scores, strength)
    assert np.allclose(found.weights[0].numpy(), expected, atol=1e-6)
    if strength == 0.2:
        assert (expected == 0).any()


def test_the_word_that_is_copied_has_the_largest_weight():
    model, tokenizer = MarkedCopy().eval(), word_tokens()
    e = vitrail.explain(
        model, "the key is red . Anna has one .", "context_cite", tokenizer=tokenizer, units="words",
        target=vitrail.targets.token("red", against="blue"), keep=True,
    )  # fmt: skip
    assert e.text[0].top(1)[0][0].strip() == "red"
    error = e.intermediates["standard_error"][0][0]
    assert bool((error >= 0).all())
    assert bool(error.isfinite().all())


def test_weights_of_classes_explain_the_log_odds():
    """With one score for each of two tokens removed, predictions of the linear model follow the scores."""
    model, ids = decoder("GPT2").double(), words()
    target = lambda o: o.logits[:, -1].log_softmax(-1)[:, 5]  # noqa: E731
    one, two = (
        vitrail.explain(model, {"input_ids": ids}, f"context_cite:seed={seed},masks=256", target=target).grid[0, 0]
        for seed in (0, 1)
    )
    assert float(torch.corrcoef(torch.stack([one, two]))[0, 1]) > 0.8


def test_images_and_options():
    explanation = vitrail.explain(tiny_vit(), torch.randn(1, 3, 32, 32), "context_cite:masks=16", target=[[0, 1]])
    assert explanation.grid.shape == (1, 2, 4, 4)
    with pytest.raises(OptionError, match="share"):
        vitrail.explain(tiny_vit(), torch.randn(1, 3, 32, 32), "context_cite:share=1", target=0)
