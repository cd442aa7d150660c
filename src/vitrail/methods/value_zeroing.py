"""Value zeroing: how far each token's output of a block moves when another token's values are zero."""

from __future__ import annotations

import contextlib
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.capture.attention_recorder import Edit
from vitrail.capture.block_modules import alike_inputs, block_modules
from vitrail.capture.forward import forward_pass
from vitrail.capture.inputs import ModelInputs
from vitrail.capture.tensor_difference import relative_difference
from vitrail.capture.trace import ALL
from vitrail.errors import NotApplicableError
from vitrail.methods._propagate import row
from vitrail.methods.cost import forward_passes
from vitrail.methods.probe import Probe, ProbedTrace
from vitrail.methods.registry import Applies, register, within


@register(
    "value_zeroing",
    "Value zeroing",
    "perturbation",
    cite="mohebbi2023quantifying",
    class_specific=False,
    variants={"last": {"start": -1}},
    applies=Applies(excluded={"pool": "the outputs of its attention pool are no tokens"}),
    cost=forward_passes(lambda _, size: size.grid[0] * size.grid[1]),
)
def value_zeroing(trace: ProbedTrace, *, start: int = 0) -> Tensor:
    """The readout row of the product over blocks of C, later blocks on the left.

    C has, for two tokens i and j, the cosine distance between the block's output at i and the same output when the
    values of j are zero in all heads of this block; its rows are scaled to sum one. Skip connection, norms and MLP of
    the block are in C, so no identity is added. Distances are between 0 (the same direction) and 2 (the opposite one);
    the map has shares between 0 and 1, which sum to one over all tokens.

    Args:
        trace: The pass.
        start: First block; −1 for the last one alone.

    Returns:
        Relevance of patches, shape (b, S), shares between 0 and 1.
    """
    probe = trace.probe
    within("start", start, len(probe.structure.layers), "blocks")
    readout = trace.readout.expand(probe.batch, -1)
    rows = []
    for example in range(probe.batch):
        v = readout[example : example + 1]
        for C in reversed(_mixing(probe, example, range(len(probe.structure.layers))[start:])):
            if trace.valid is not None:
                valid = trace.valid[example if len(trace.valid) > 1 else 0].to(C)
                C.mul_(valid[:, None]).mul_(valid)
            C.div_(C.sum(-1, keepdim=True).clamp_min(torch.finfo(C.dtype).tiny))
            v = row(v.to(C), C[None])
        rows.append(v)
    return trace.patches(torch.cat(rows))


def _mixing(probe: Probe, example: int, chosen: range) -> list[Tensor]:
    """Distances of the outputs of some blocks for one input, shape (n, n) each: [i, j] is that of i without j.

    A pass has the input as it is in its first row and one token without values in each other row.
    """
    tokens, device = probe.structure.tokens, probe.model_inputs.tensors[0].device
    found = {i: torch.zeros(tokens, tokens, device=device, dtype=torch.float64) for i in chosen}
    axis = 1 if probe.structure.tokens_first else 0
    at_once = max(1, probe.max_batch - 1)
    for first in range(0, tokens, at_once):
        zeroed = torch.arange(first, min(first + at_once, tokens), device=device)
        inputs = probe.model_inputs.indexed(torch.full((1 + len(zeroed),), example, device=device))
        edit = partial(_without_values, zeroed=zeroed)
        for index, out in _block_outputs(probe, inputs, edit, chosen, axis).items():
            rows = (out.transpose(0, 1) if axis else out).detach().double()
            rows = rows.reshape(len(rows), -1, rows.shape[-1])
            found[index][:, zeroed] = (1 - F.cosine_similarity(rows[1:], rows[:1], dim=-1)).mT
        probe.advance(len(zeroed))
    return [found[i].clamp_min_(0) for i in chosen]


def _block_outputs(probe: Probe, inputs: ModelInputs, edit: Edit, chosen: range, axis: int) -> dict[int, Tensor]:
    """What leaves some blocks, each with edited attention and rows that enter it as the first one does.

    One pass serves all blocks if all rows enter every block alike, which hooks of the blocks' modules do. Where a block
    is no module that the model calls, each block has a pass of its own, and the rows differ from it on.
    """
    found: dict[int, Tensor] = {}
    with contextlib.suppress(NotApplicableError):
        with (
            alike_inputs(block_modules(probe.model, probe.structure), found.__setitem__, axis),
            forward_pass(probe.model, inputs, probe.structure, [{}], dict.fromkeys(chosen, edit)),
        ):
            pass
        if set(chosen) <= set(found):
            return {i: found[i] for i in chosen}
    left: list[Tensor] = []

    def keep(outputs: list[Tensor]) -> Tensor:
        left[:] = outputs
        return outputs[-1]

    for i in chosen:
        with forward_pass(probe.model, inputs, probe.structure, [{"X": ALL}], {i: edit}, keep) as one:
            entering = [block.X.transpose(0, axis) for block in one.blocks]
        if len(left) != len(entering) or not all(map(_is_stream, left, entering[1:])):
            raise NotApplicableError(
                f"the blocks of {probe.structure.model} are neither modules that it calls nor sums: use atman or "
                "shapley, which remove tokens in the whole model"
            )
        found[i] = left[i]
    return found


def _is_stream(out: Tensor, entering: Tensor) -> bool:
    """Whether what left a block is what enters the next one."""
    return out.numel() == entering.numel() and bool(relative_difference(out.reshape(entering.shape), entering) < 1e-3)


def _without_values(A: Tensor, zeroed: Tensor) -> Tensor:
    """Attention, shape (1 + m, H, n, n), of which each row after the first has no weight on one key.

    Zero weights on a key without renormalisation are what zero values of it are.
    """
    kept = torch.ones(len(A), A.shape[-1], device=A.device, dtype=A.dtype)
    kept[torch.arange(1, len(A), device=A.device), zeroed] = 0
    return A * kept[:, None, None]
