"""Recomputation of blocks: a backward pass computes the activations of each block again instead of keeping them.

A graph then holds what enters each block, and the activations of one block at a time. Modes that replace functions of
the model replace them alike in both computations, so the results are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.func import functional_call
from torch.overrides import _get_current_function_mode_stack
from torch.utils.checkpoint import CheckpointError, checkpoint, set_checkpoint_early_stop

from vitrail import fast
from vitrail.capture.frozen import frozen
from vitrail.errors import NotApplicableError


def recomputable_blocks(model: nn.Module) -> list[nn.Module]:
    """The innermost entries of lists of modules that hold modules with parts, as blocks of a transformer do.

    Example:
        >>> from vitrail.testing import tiny_vit
        >>> [type(block).__name__ for block in recomputable_blocks(tiny_vit(depth=2))]
        ['PlainBlock', 'PlainBlock']
    """
    lists = [m for m in model.modules() if isinstance(m, nn.ModuleList | nn.Sequential)]
    entries = [
        entry for one in lists for entry in one if any(True for part in entry.children() for _ in part.children())
    ]
    own = {id(entry) for entry in entries}
    return [entry for entry in entries if not any(id(m) in own for m in entry.modules() if m is not entry)]


@contextmanager
def recomputed_blocks(model: nn.Module) -> Iterator[None]:
    """Keep no activations inside the blocks of a model; the model is frozen, because it runs in backward passes too.

    Raises:
        NotApplicableError: The model has no blocks, or a block computes something else when it runs again.
    """
    blocks = recomputable_blocks(model)
    if not blocks:
        raise NotApplicableError(
            f"recompute=True: {type(model).__name__} has no list of blocks (nn.ModuleList or nn.Sequential) whose "
            "activations could be computed again; use a smaller batch_size, or a method without gradients"
        )
    before = [vars(block).get("forward") for block in blocks]
    with frozen(model), fast.recomputation(), set_checkpoint_early_stop(False):
        try:
            for block in blocks:
                block.__dict__["forward"] = partial(_run_block, block, block.forward)
            yield
        except (CheckpointError, RuntimeError) as error:
            if isinstance(error, CheckpointError) or "modified by an inplace operation" in str(error):
                raise NotApplicableError(
                    f"recompute=True: a block of {type(model).__name__} computes something else when it runs again, or "
                    f"changes its input in place; explain it without recompute ({str(error).splitlines()[0]})"
                ) from error
            raise
        finally:
            for block, forward in zip(blocks, before, strict=True):
                del block.__dict__["forward"]
                if forward is not None:
                    block.__dict__["forward"] = forward


def _run_block(block: nn.Module, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """What a block returns; its activations are computed again in a backward pass."""
    if not torch.is_grad_enabled():
        return forward(*args, **kwargs)
    tensors = {name: t for name, t in (*block.named_parameters(), *block.named_buffers()) if not t.is_meta}

    def run(*args: Any, **kwargs: Any) -> Any:
        now = {**dict(block.named_parameters()), **dict(block.named_buffers())}
        # A pass in another precision than the model's replaces the weights for the time of its forward pass.
        replaced = {name: t for name, t in tensors.items() if name in now and now[name] is not t}
        if not replaced:
            return forward(*args, **kwargs)
        return functional_call(_Forward(block, forward), {f"block.{n}": t for n, t in replaced.items()}, args, kwargs)

    return checkpoint(run, *args, use_reentrant=False, preserve_rng_state=False, context_fn=_contexts, **kwargs)


class _Forward(nn.Module):
    """A block with the forward it had before recomputation."""

    def __init__(self, block: nn.Module, forward: Callable[..., Any]) -> None:
        super().__init__()
        self.block = block
        self._forward = forward

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The block's own forward."""
        return self._forward(*args, **kwargs)


def _contexts() -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
    """Contexts of the first computation and of the second one, in which the same modes replace functions."""
    modes: list[Any] = _get_current_function_mode_stack()  # type: ignore[no-untyped-call]
    return nullcontext(), _ModesAgain([getattr(mode, "for_recomputation", partial(_same, mode))() for mode in modes])


def _same(mode: Any) -> Callable[[], Any]:
    return lambda: mode


class _ModesAgain:
    """Enter modes that were active in the first computation; each backward pass makes its own."""

    def __init__(self, makers: list[Callable[[], Any]]) -> None:
        self._makers = makers
        self._stack = ExitStack()

    def __enter__(self) -> None:
        self._stack = ExitStack()
        self._stack.enter_context(fast.recomputation())
        for make in self._makers:
            self._stack.enter_context(make())

    def __exit__(self, *error: object) -> None:
        self._stack.close()
