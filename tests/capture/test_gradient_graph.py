"""The description of a pass's graph of gradients."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from vitrail.capture.gradient_graph import graph_moves
from vitrail.capture.program import checksum, join_checksums

ORDER = torch.tensor([2, 0, 1, 3])
PLACES = ORDER[None, :, None].expand(2, 4, 6)


def number(compute: Callable[[Tensor], Tensor]) -> tuple[int, list[int] | None]:
    value, sums = graph_moves(compute(torch.randn(2, 4, 6, requires_grad=True)))
    return value, None if sums is None else sums.tolist()


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (lambda x: x[:, ORDER].mean(1), lambda x: x[:, ORDER.flip(0)].mean(1)),
        (lambda x: x.roll(1, 1).mean(1), lambda x: x.roll(2, 1).mean(1)),
        (lambda x: x.roll(-1, 1).mean(1), lambda x: x.roll(-2, 1).mean(1)),
        (lambda x: x[:, -1].sum() * 0, lambda x: x[:, -2].sum() * 0),
        (lambda x: x.softmax(-1) * x, lambda x: x.softmax(-1).detach() * x),
        (lambda x: x.view(2, 2, 2, 6).transpose(1, 2).sum(), lambda x: x.view(2, 4, 1, 6).transpose(1, 2).sum()),
        (lambda x: x.flip(1).sum(), lambda x: x.flip(2).sum()),
        (lambda x: sum(x.unbind(1)[1:3]), lambda x: sum(x.unbind(1)[0:2])),
        (lambda x: x.index_select(1, ORDER).sum(), lambda x: x.index_select(1, ORDER.flip(0)).sum()),
        (lambda x: x.gather(1, PLACES).sum(), lambda x: x.gather(1, PLACES * 0).sum()),
    ],
    ids=["index", "roll", "negative roll", "select", "detach", "view", "flip", "unbind", "index_select", "gather"],
)  # fmt: skip
def test_moves_of_tensors_are_told_apart(one: Callable[[Tensor], Tensor], other: Callable[[Tensor], Tensor]) -> None:
    assert number(one) == number(one)
    assert number(one) != number(other)


def test_numbers_do_not_count() -> None:
    assert number(lambda x: (x * 2.0 + 1).softmax(-1)) == number(lambda x: (x * 3.0 + 1).softmax(-1))


def test_indices_on_several_devices_are_joined_on_one():
    # "meta" stands for a GPU: tensors on it cannot be stacked with those of the CPU either.
    kept, away = torch.tensor([3, 1, 2]), torch.tensor([0, 2], device="meta")
    joined = join_checksums([checksum(kept), checksum(away)])
    assert joined.device.type == "meta"
    assert joined.shape == (2,)
    assert join_checksums([]) is None
    with pytest.raises(RuntimeError, match="device"):
        torch.stack([checksum(kept), checksum(away)])
