"""The objective of ViT Shapley: its minimum, its gradients and those of the surrogate."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
import torch

from tests.methods.shapley_explainer.small_explainer import PIXELS, small_vit
from tests.replicas import vit_shapley as replica
from vitrail.methods.shapley_explainer.explainer_network import explainer_loss, normalise_values, shapley_loss
from vitrail.methods.shapley_explainer.surrogate import surrogate_loss, trainable_copy


def random_case():
    generator = torch.Generator().manual_seed(1)
    values, scores = (torch.randn(2, n, 3, generator=generator, dtype=torch.float64) for n in (5, 4))
    coalitions = (torch.rand(2, 4, 5, generator=generator) < 0.5).double()
    return values, coalitions, scores, torch.randn(3, generator=generator, dtype=torch.float64)


def test_objective_is_that_of_the_replica():
    values, coalitions, scores, empty = random_case()
    expected = replica.objective(values.numpy(), coalitions.numpy(), scores.numpy(), empty.numpy())
    assert float(shapley_loss(values, coalitions, scores, empty)) == pytest.approx(expected, rel=1e-12)


def test_normalisation_is_that_of_the_replica():
    values, _, scores, _ = random_case()
    total = scores[:, 0]
    found = normalise_values(values, total)
    assert torch.allclose(found.sum(1), total, rtol=1e-12)
    assert np.allclose(found.numpy(), replica.normalised(values.numpy(), total.numpy()), rtol=1e-12)


def least_squares(value, players, coalitions_of):
    """Minimise the objective over free values; the coalitions of one size have the kernel's share of the loss."""
    empty, whole = (torch.tensor(value(frozenset(s))) for s in ((), range(players)))
    terms = []
    for size, probability in enumerate(replica.size_probabilities(players), 1):
        members = coalitions_of(size)
        masks = torch.tensor([[float(i in s) for i in range(players)] for s in members], dtype=torch.float64)
        terms.append((probability, masks[None], torch.tensor(np.array([[value(frozenset(s)) for s in members]]))))

    def loss(free):
        values = normalise_values(free.view(1, players, -1), (whole - empty)[None])
        return sum(probability * shapley_loss(values, masks, scores, empty) for probability, masks, scores in terms)

    start = torch.zeros(players * len(empty), dtype=torch.float64)  # the loss is quadratic: one Newton step
    gradient = torch.autograd.functional.jacobian(loss, start)
    step = torch.linalg.lstsq(torch.autograd.functional.hessian(loss, start), -gradient, driver="gelsd").solution
    return normalise_values(step.view(1, players, -1), (whole - empty)[None])[0].numpy()


def test_a_linear_game_is_recovered_from_a_few_coalitions():
    weights = np.random.default_rng(0).normal(size=(6, 2))

    def linear(members):
        return np.array([0.3, -0.2]) + sum((weights[i] for i in members), np.zeros(2))

    found = least_squares(linear, 6, lambda size: [tuple((i + k) % 6 for i in range(size)) for k in range(6)])
    assert np.allclose(found, weights, atol=1e-7)


def test_the_minimum_of_the_objective_is_the_shapley_value():
    table = np.random.default_rng(1).normal(size=(2**5, 2))

    def game(members):
        return table[sum(2**i for i in members)]

    found = least_squares(game, 5, lambda size: list(combinations(range(5), size)))
    assert np.allclose(found, replica.shapley_values(game, 5), atol=1e-6)


def test_training_losses_have_gradients_for_all_that_is_trained(trained):
    _, run = trained
    generator = torch.Generator().manual_seed(0)
    surrogate = trainable_copy(small_vit())
    surrogate_loss(run.partial_images, small_vit(), surrogate, PIXELS, 3, generator).backward()
    assert all(p.grad is not None for p in surrogate.parameters())
    loss = explainer_loss(run.partial_images, run.surrogate, run.explainer, PIXELS, run.empty, 2, generator)
    names = run.explainer.trained()
    gradients = torch.autograd.grad(loss, list(names.values()))
    assert all(torch.isfinite(g).all() for g in gradients)
    assert not {"backbone.head.weight", "backbone.head.bias"} & names.keys()
    assert any(name.startswith("backbone.blocks.0") for name in names)


def test_the_surrogate_loss_is_zero_for_the_model_on_whole_images(trained):
    _, run = trained
    model = small_vit()
    every = torch.arange(16).expand(6, -1)
    log_p = run.partial_images.logits(model, PIXELS, every).log_softmax(-1).detach()
    expected = run.partial_images.probabilities(model, PIXELS)
    assert float(torch.nn.functional.kl_div(log_p, expected, reduction="batchmean")) == pytest.approx(0, abs=1e-6)
