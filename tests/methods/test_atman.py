"""AtMan: suppressed attention is that of its formula, and is computed in place."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from vitrail.methods.probe import _suppress


class Storages(TorchDispatchMode):
    """Distinct storages of at least some bytes among all results; each is kept, so that none is used twice."""

    def __init__(self, least: int) -> None:
        super().__init__()
        self.least, self.kept = least, dict[int, Tensor]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor) and result.untyped_storage().nbytes() >= self.least:
            self.kept.setdefault(result.untyped_storage().data_ptr(), result)
        return result


def attention_and_kept() -> tuple[Tensor, Tensor]:
    """Attention whose last query sees no key, and whose others do not see the last key; what is kept of each key."""
    generator = torch.Generator().manual_seed(0)
    A = torch.randn(3, 2, 5, 5, generator=generator).softmax(-1)
    A[..., -1], A[..., -1, :] = 0, 0
    return A / A.sum(-1, keepdim=True).clamp_min(1e-9), torch.rand(3, 5, generator=generator)


def test_suppressed_attention_takes_the_memory_of_two_maps() -> None:
    A, kept = attention_and_kept()
    with Storages(A.nbytes) as seen:
        _suppress(A, kept)
    assert len(seen.kept.keys() - {A.untyped_storage().data_ptr()}) == 2


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_suppressed_attention_is_that_of_the_formula(dtype: torch.dtype) -> None:
    A, kept = attention_and_kept()
    before = A.to(dtype)
    found = _suppress(before.clone(), kept)
    assert found.dtype is dtype
    logits = before[:, :, :-1, :-1].double().log()
    expected = ((logits - logits.amin(-1, keepdim=True)) * kept[:, None, None, :-1]).softmax(-1)
    torch.testing.assert_close(found[:, :, :-1, :-1], expected.to(dtype))
    assert not found[..., -1, :].any()
    assert not found[..., -1].any()
