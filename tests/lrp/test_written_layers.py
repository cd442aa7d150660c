"""Relevance does not depend on how a layer is written: other functions, constants without axes, sigmoids and gates."""

from __future__ import annotations

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import vitrail
from tests.combinations import combinations
from vitrail.errors import NotApplicableError
from vitrail.models.plain_vit import PlainViT


class AddmmHead(nn.Module):
    """A linear layer written with another function."""

    def __init__(self, head: nn.Linear) -> None:
        super().__init__()
        self.head = head

    def forward(self, x):
        return torch.addmm(self.head.bias, x, self.head.weight.T)


@pytest.mark.parametrize("method", ["lrp", "transformer_attribution", "conservative_lrp", "attnlrp", "abslrp"])
def test_the_way_a_layer_is_written_does_not_matter(method):
    model, images = PlainViT().double().eval(), torch.randn(2, 3, 32, 32, dtype=torch.float64)
    expected = vitrail.explain(model, images, method, target=1).grid
    model.embed.padding = "valid"
    model.head = AddmmHead(model.head)
    assert torch.allclose(vitrail.explain(model, images, method, target=1).grid, expected, rtol=1e-8)


class Scaled(nn.Module):
    """A module whose result is changed by a single number, a tensor without axes."""

    def __init__(self, inner: nn.Module, change) -> None:
        super().__init__()
        self.inner, self.change = inner, change

    def forward(self, x, *args, **kwargs):
        return self.change(self.inner(x, *args, **kwargs))


#: A scalar that is no parameter of the model, so that it is not frozen.
SCALAR = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)


#: Operations of a value and a number.
OPERATIONS = {
    "mul": lambda y, number: y * number, "rmul": lambda y, number: number * y, "sub": lambda y, number: y - number,
    "add": lambda y, number: y + number, "div": lambda y, number: y / number,
}  # fmt: skip


@pytest.mark.parametrize(
    ("operation", "method"),
    combinations(list(OPERATIONS), ["lrp", "attnlrp", "transformer_attribution", "abslrp", "conservative_lrp"]),
)
def test_a_scalar_without_axes_is_a_constant(operation, method):
    torch.manual_seed(0)
    model, images = PlainViT().double().eval(), torch.randn(2, 3, 32, 32, dtype=torch.float64)
    mlp = model.blocks[1].mlp
    maps = []
    for number in (SCALAR, 0.7):
        model.blocks[1].mlp = Scaled(mlp, partial(OPERATIONS[operation], number=number))
        maps.append(vitrail.explain(model, images, method, target=1).grid)
    assert torch.allclose(*maps, rtol=1e-10)
    model.blocks[1].mlp = Scaled(mlp, lambda y: y - y.mean())  # a statistic of all tokens
    with pytest.raises(NotApplicableError, match=r"mixed between the attention of blocks\.1 and that of blocks\.2"):
        vitrail.explain(model, images, method, target=1)


class SigmoidHead(nn.Module):
    """A classifier that ends in a sigmoid, as heads of several labels and of box coordinates do."""

    def __init__(self, vit: nn.Module) -> None:
        super().__init__()
        self.vit = vit

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.vit(images).sigmoid()


@pytest.mark.parametrize("method", ["attnlrp", "attnlrp:released", "transformer_attribution", "lrp", "abslrp"])
def test_a_sigmoid_at_the_end_passes_relevance(method):
    torch.manual_seed(0)
    vit, images = PlainViT().eval(), torch.randn(2, 3, 32, 32)
    expected = vitrail.explain(vit, images, method, target=2, scores="sigmoid")
    assert float(expected.grid.abs().max()) > 0
    with pytest.warns(vitrail.errors.GuessWarning, match="sigmoids of single classes"):
        found = vitrail.explain(SigmoidHead(vit), images, method, target=2)
    torch.testing.assert_close(found.grid, expected.grid, rtol=1e-3, atol=1e-3 * float(expected.grid.abs().max()))


class Gated(PlainViT):
    """The result of the embedding times a gate, written as a product or as one function."""

    written = True

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = self.embed(images).flatten(2).transpose(1, 2)
        x = x * x.unsqueeze(-1).sigmoid().squeeze(-1) if self.written else F.silu(x)
        x = torch.cat([self.prefix.expand(len(x), -1, -1), x], 1) + self.position
        return self.head(self.norm(self.blocks(x))[:, 0])


def test_a_gate_is_a_constant_factor():
    torch.manual_seed(0)
    model, images = Gated().eval(), torch.randn(2, 3, 32, 32)
    found = vitrail.explain(model, images, "attnlrp", target=1)
    model.written = False
    expected = vitrail.explain(model, images, "attnlrp", target=1)
    torch.testing.assert_close(found.grid, expected.grid, rtol=1e-3, atol=1e-4)
