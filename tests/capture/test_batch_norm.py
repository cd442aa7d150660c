"""Gradients of batch normalisation for every order of the axes in memory, and of one image."""

from __future__ import annotations

from itertools import permutations, product

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import vitrail
from vitrail.capture.batch_norm import ContiguousBatchNorm
from vitrail.capture.frozen import frozen


def layouts(shape: tuple[int, ...]) -> list[Tensor]:
    """Tensors of a shape with their axes in each order in memory, and one made of transposed tokens."""
    orders = list(permutations(range(len(shape))))
    found = [torch.randn([shape[i] for i in p]).permute([p.index(i) for i in range(len(shape))]) for p in orders]
    return [*found, torch.randn(shape[0], shape[2] * shape[3], shape[1]).mT.unflatten(2, shape[2:])]


@pytest.mark.parametrize("shape", [(1, 4, 2, 3), (2, 4, 2, 3), (1, 4, 3, 1), (2, 4, 1, 3)])
def test_gradients_are_the_scale_of_each_channel_in_every_layout(shape):
    torch.manual_seed(0)
    mean, variance, weight = torch.randn(4), torch.rand(4) + 0.5, torch.randn(4)
    scale = (weight / (variance + 1e-5).sqrt()).view(-1, 1, 1)
    for values, gradient in product(layouts(shape), layouts(shape)):
        leaf = values.detach().requires_grad_()
        with ContiguousBatchNorm():
            result = F.batch_norm(input=leaf, running_mean=mean, running_var=variance, weight=weight).mul_(2)
        torch.testing.assert_close(result, 2 * (values - mean.view(-1, 1, 1)) * scale)
        (found,) = torch.autograd.grad(result, leaf, gradient)
        torch.testing.assert_close(found, 2 * gradient * scale)


class Stem(nn.Module):
    """Convolution, batch normalisation, tokens and a linear score."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.norm, self.head = nn.Conv2d(3, 8, 4, 4), nn.BatchNorm2d(8), nn.Linear(16 * 8, 5)
        nn.init.normal_(self.norm.weight)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.norm(self.embed(images)).flatten(2).mT.flatten(1))


def test_one_image_has_the_map_that_it_has_in_a_batch():
    model, images = Stem().double().eval(), torch.randn(2, 3, 16, 16, dtype=torch.float64)
    both = vitrail.explain(model, images, "gradient_x_input", target=2).grid
    for i in range(2):
        alone = vitrail.explain(model, images[i : i + 1], "gradient_x_input", target=2).grid
        torch.testing.assert_close(alone[0], both[i])
    # The model is affine in the image: the map sums to the difference from the score of a black image.
    change = model(images)[:, 2] - model(torch.zeros_like(images))[:, 2]
    torch.testing.assert_close(both.flatten(1).sum(1), change.detach())


def test_several_gradients_at_once():
    model, images = Stem().double().eval(), torch.randn(1, 3, 16, 16, dtype=torch.float64, requires_grad=True)
    with frozen(model):
        scores = model(images)[0]
    (rows,) = torch.autograd.grad(scores, images, torch.eye(5).double(), retain_graph=True, is_grads_batched=True)
    for row, score in zip(rows, scores, strict=True):
        torch.testing.assert_close(row, torch.autograd.grad(score, images, retain_graph=True)[0])
