"""One pass through a model: a forward, and a backward for each target somebody asks for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from vitrail.errors import ModelError, TargetError
from vitrail.inside.anatomy import Anatomy
from vitrail.inside.attention import AttentionMode, Edit, Gate
from vitrail.inside.feed import Feed, logits_of
from vitrail.inside.still import still
from vitrail.inside.stream import Tail
from vitrail.inside.trace import Block, Needs, Trace, plan

_STREAM = ("X", "X_norm", "X_mid", "X_mid_norm", "F", "V_in", "Y", "branch")
_FROM_THE_INPUT = ("dX",)


@dataclass(frozen=True)
class Pass:
    """A forward pass and what was kept of it.

    Attributes:
        output: What the model returned.
        logits: The class scores in it, detached, or None.
        blocks: What was kept, block by block.
        nodes: Tensors whose gradient can be asked for, by (kind, block).
        anatomy: What the model is made of.
    """

    output: Any
    logits: Tensor | None
    blocks: tuple[Block, ...]
    nodes: dict[tuple[str, int], Tensor]
    anatomy: Anatomy
    queries: int
    dtype: torch.dtype
    device: torch.device
    gate: Gate
    valid: Tensor | None = None

    def trace(self, target: Tensor | None = None, keep_graph: bool = False, cut: bool = False) -> Trace:
        """The pass as methods see it; with a target, a scalar a sample, also its gradients.

        Args:
            target: What to differentiate, shape (b,), in the graph of ``output``.
            keep_graph: Whether more targets will be asked for.
            cut: Let no gradient pass through attention: it reaches lower blocks by skip connections and MLPs alone.
        """
        blocks = [block if self.valid is None else _unpadded(block, self.valid) for block in self.blocks]
        nodes = {key: node for key, node in self.nodes.items() if key[0] == "dA"} if cut else self.nodes
        if target is not None and nodes:
            if not target.requires_grad:
                raise TargetError(
                    "the target does not depend on the model's attention, so it has no gradient: "
                    "it must be computed from the model's output without detaching it"
                )
            self.gate.closed = cut
            found = torch.autograd.grad(target.sum(), list(nodes.values()), retain_graph=keep_graph, allow_unused=True)
            self.gate.closed = False
            for ((kind, index), node), gradient in zip(nodes.items(), found, strict=True):
                value = (torch.zeros_like(node) if gradient is None else gradient).to(self.dtype)
                if self.anatomy.tokens_first and kind in ("dX", "dY"):
                    value = value.transpose(0, 1)
                if self.valid is not None and kind == "dA":
                    value = _between(value, self.valid)
                blocks[index] = blocks[index].having(**{kind: value})
        readout = self.anatomy.layout.weights(self.queries, self.device, self.dtype)
        if self.valid is not None and self.anatomy.layout.readout in ("mean", "all"):
            readout = self.valid.to(readout) / self.valid.sum(-1, keepdim=True)
        return Trace(
            tuple(blocks), readout, self.anatomy.layout.prefix or 0, self.logits, self.device, valid=self.valid
        )


def answer(model: nn.Module, feed: Feed, anatomy: Anatomy) -> Pass:
    """A pass of which nothing is kept but what the model says, for methods that look at nothing inside it.

    Args:
        model: The user's model, unwrapped; it is held still while it runs.
        feed: Inputs on its device.
        anatomy: As read from it.
    """
    with still(model), torch.no_grad():
        output = feed.into(model)
    device = feed.tensors[0].device
    return Pass(output, logits_of(output), (), {}, anatomy, 0, _dtype(model), device, Gate(), feed.valid)


@contextmanager
def passing(
    model: nn.Module, feed: Feed, anatomy: Anatomy, needs: Iterable[Needs], edits: Mapping[int, Edit] | None = None,
    tail: Tail | None = None,
) -> Iterator[Pass]:  # fmt: skip
    """Run one forward and keep what is needed; the model is held still until the gradients have been taken.

    Args:
        model: The user's model, unwrapped.
        feed: Inputs on its device.
        anatomy: As read from it.
        needs: What each of the methods to come needs.
        edits: Functions that replace the attention of some blocks, by block.
        tail: Replaces what leaves the last block, from what leaves all of them.
    """
    organs = anatomy.organs
    by_call = {kind: frozenset(organs[i].call for i in where) for kind, where in plan(needs, len(organs)).items()}
    dtype = _dtype(model)
    mode = AttentionMode(
        by_call, feed.batch, dtype,
        edits={organs[i].call: edit for i, edit in (edits or {}).items()},
        tail=None if tail is None else ([o for o in organs if not o.pool][-1].call, tail),
    )  # fmt: skip
    image = feed.image
    if image is not None and any(kind in by_call for kind in _FROM_THE_INPUT):
        feed = feed.swap(image, image.detach().clone().requires_grad_())
    with still(model):
        with mode:
            output = feed.into(model)
        if len(mode.calls) <= organs[-1].call:
            raise ModelError(
                f"the model attended {len(mode.calls)} times where {organs[-1].call + 1} were expected: "
                "its path depends on the input; explain the inputs one by one"
            )
        blocks = []
        for organ in organs:
            block = mode.calls[organ.call].block
            block.pool = organ.pool
            if anatomy.tokens_first:
                _batch_first(block, anatomy.tokens)
            blocks.append(block)
        index_of = {organ.call: i for i, organ in enumerate(organs)}
        nodes = {(kind, index_of[call]): node for (kind, call), node in mode.nodes.items() if call in index_of}
        logits = logits_of(output)
        logits = None if logits is None else logits.detach()
        queries = mode.calls[organs[-1].call].shape[2]
        device = feed.tensors[0].device
        yield Pass(output, logits, tuple(blocks), nodes, anatomy, queries, dtype, device, mode.gate, feed.valid)


def _dtype(model: nn.Module) -> torch.dtype:
    """What methods compute in: the model's own precision, but single at least."""
    weight = next((p for p in model.parameters() if p.is_floating_point()), torch.zeros(()))
    return torch.promote_types(weight.dtype, torch.float32)


def _unpadded(block: Block, valid: Tensor) -> Block:
    return block.having(**{name: _between(vars(block)[name], valid) for name in ("A", "A_mean") if name in vars(block)})


def _between(attention: Tensor, valid: Tensor) -> Tensor:
    """Attention between tokens that are no padding, shape (b, [H,] n, n); all else is zero.

    Nothing attends to padding, but padding itself attends, and gradients at attention to it are not zero.
    """
    both = valid[:, :, None] & valid[:, None, :]
    return attention * (both if attention.dim() == 3 else both[:, None])


def check_finite(model: nn.Module, logits: Tensor | None) -> None:
    """Refuse to explain a model that says NaN, and name the weights that make it so."""
    if logits is None or bool(torch.isfinite(logits).all()):
        return
    broken = [name for name, p in (*model.named_parameters(), *model.named_buffers()) if _broken(p)]
    if broken:
        more = f" and {len(broken) - 1} more" if len(broken) > 1 else ""
        raise ModelError(f"the model's weights are not finite: {broken[0]}{more}; load a sound checkpoint")
    raise ModelError(
        "the model's output is not finite although its weights are: the input may hold NaN, or half precision "
        "overflowed; check the input or use float32"
    )


def _broken(tensor: Tensor) -> bool:
    return tensor.is_floating_point() and not bool(torch.isfinite(tensor).all())


def _batch_first(block: Block, tokens: int) -> None:
    for name in _STREAM:
        tensor = vars(block).get(name)
        if isinstance(tensor, Tensor) and tensor.shape[0] == tokens:
            setattr(block, name, tensor.transpose(0, 1))
