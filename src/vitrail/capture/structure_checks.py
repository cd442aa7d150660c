"""Checks of a structure on the pass it was measured on: residual stream, mixing, attention pool, folded heads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from vitrail.capture import verify
from vitrail.capture.attention import AttentionMode
from vitrail.capture.attention_call import Call
from vitrail.capture.inputs import ModelInputs
from vitrail.capture.model_call import run_model
from vitrail.capture.model_structure import ModelStructure
from vitrail.capture.verify import TOLERANCE, Check

ALL_CALLS = frozenset(range(4096))


@dataclass
class StructurePass:
    """The forward pass that everything is measured on."""

    model: nn.Module
    model_inputs: ModelInputs
    mode: AttentionMode
    output: Any
    scores: Tensor
    leaf: Tensor | None
    shared: float = 0.0
    owners: Tensor | None = None
    live: list[int] = field(default_factory=list)
    arrived: dict[int, Tensor] = field(default_factory=dict)

    @property
    def map_size(self) -> tuple[int, ...] | None:
        """Size of a map, such as the height and width of the images, or None for texts."""
        return self.model_inputs.map_size


#: Checks of the residual stream by name.
_STREAM_CHECKS = {
    "sum": "the residual stream adds up",
    "projection": "output projections",
    "value": "value projections",
}


def check_stream(one: StructurePass, base: ModelStructure) -> tuple[ModelStructure, list[Check]]:
    """The residual stream, output and value projections hold numerically; layers where they do not lose them."""
    mode, stream = one.mode, one.mode.stream
    if stream is None:
        return base, []
    limit = TOLERANCE.get(one.scores.dtype, 1e-3)
    found: dict[tuple[str, int], Tensor | float] = {}
    for i, layer in enumerate(base.layers):
        call = mode.calls[layer.call]
        assert call.Z is not None and call.V is not None  # noqa: PT018 - kept by this pass
        errors = {
            "sum": stream.errors.get(layer.call) if not layer.pool else None,
            "projection": None if layer.pool else verify.projection_error(call.block, call.Z, base.tokens_first),
            "value": verify.value_error(call.block, call.V),
        }
        found |= {(name, i): error for name, error in errors.items() if error is not None}
    measured = _numbers(found)
    failed = {name: [i for (n, i), e in measured.items() if n == name and not e <= limit] for name in _STREAM_CHECKS}
    layers = [
        replace(
            layer,
            stream=layer.stream and i not in failed["sum"],
            projection=None if i in failed["projection"] else layer.projection,
            value=None if i in failed["value"] else layer.value,
        )
        for i, layer in enumerate(base.layers)
    ]
    checks = []
    for name, title in _STREAM_CHECKS.items():
        bad, worst = failed[name], max((e for (n, _), e in measured.items() if n == name), default=None)
        if worst is None:
            checks.append(Check(title, None, "not seen in any block"))
            continue
        where = f"; not in block {', '.join(map(str, bad[:6]))}: methods that need it refuse this model" if bad else ""
        checks.append(Check(title, not bad, f"largest relative error {worst:.1e}{where}"))
    return replace(base, layers=tuple(layers)), checks


def _numbers(errors: dict[tuple[str, int], Tensor | float]) -> dict[tuple[str, int], float]:
    """Errors as numbers, read from the device once."""
    on_device = {key: error for key, error in errors.items() if isinstance(error, Tensor)}
    read = dict(zip(on_device, torch.stack([*on_device.values()]).tolist() if on_device else [], strict=True))
    return {key: read[key] if isinstance(error, Tensor) else error for key, error in errors.items()}


def check_mixing(
    one: StructurePass, base: ModelStructure, streams: dict[int, Tensor], live: Sequence[int]
) -> tuple[ModelStructure, list[Check]]:
    """Tokens are mixed by the attention that was seen, and by nothing else."""
    name = "no other mixing of tokens"
    last = None if one.mode.stream is None else one.mode.stream.last
    found = None if last is None else verify.mixing(last, streams, one.mode.gate, base.tokens)
    if found is None:
        return base, [Check(name, None, "the residual stream was not found in every block")]
    highest, share = found
    # Words, and patches that do not overlap, are separate until the first attention; where they are not, something else
    # has mixed them, such as the recurrent layers of a hybrid language model.
    separate = one.model_inputs.words is not None or (one.model_inputs.image is not None and not one.mode.overlapping)
    if highest is None and separate and one.shared > verify.SILENT**2:
        highest, share = live[0], one.shared**0.5
    if highest is None:
        return base, [Check(name, True, f"share of the gradient that leaks to other tokens {share:.1e}")]
    blocks = sum(not layer.pool for layer in base.layers)
    repeated = _repeated_blocks(one.model, blocks)
    where = list(live).index(highest)
    if one.mode.convolutions and not repeated:
        detail = (
            f"convolutions mix tokens as well (share {share:.1e}, last below block {where + 1}): "
            "methods that read attention see part of the mixing"
        )
        return replace(base, notes=(*base.notes, detail)), [Check(name, None, detail)]
    seen = f"{repeated} blocks mix tokens, attention was seen in {blocks}" if repeated else "tokens are mixed"
    detail = (
        f"{seen}: below block {where + 1} something else than recognised attention moves information "
        f"(share {share:.1e})"
    )
    return replace(base, kind="unseen"), [Check(name, False, detail)]


def check_pool(
    one: StructurePass, base: ModelStructure, calls: Sequence[Call], streams: dict[int, Tensor]
) -> ModelStructure:
    """Which tokens an attention pool reads, where it does not read all of them."""
    missing = base.tokens - calls[-1].shape[3]
    if not missing:
        return base
    last, V = next(reversed(streams.values()), None), calls[-1].V
    if last is None or V is None or not base.layers[-1].pool:
        return replace(base, kind="pyramid")
    one.mode.gate.closed = True
    try:
        found = verify.owners(V, last.transpose(0, 1) if base.tokens_first else last)
    finally:
        one.mode.gate.closed = False
    expected = torch.arange(base.tokens) - missing
    if found is None or not bool((found[0].cpu() == expected.clamp_min(-1)).all()):
        return replace(base, kind="pyramid")
    return replace(base, pool_skips=missing)


def _repeated_blocks(model: nn.Module, blocks: int) -> int | None:
    """Length of the repeated module list that holds the blocks, if it is longer than the number of blocks seen."""
    lengths = [
        len(m) for m in model.modules() if isinstance(m, nn.ModuleList | nn.Sequential) and len(m) > blocks
        and len({type(child) for child in m}) <= 2
    ]  # fmt: skip
    return min(lengths, default=None)


def check_folding(
    one: StructurePass, base: ModelStructure, calls: Sequence[Call]
) -> tuple[ModelStructure, list[Check]]:
    """How a merged batch-and-heads axis is ordered, from one image alone and beside another."""
    image = one.model_inputs.signal
    if not any(c.folded for c in calls) or image is None:
        return base, []
    pair = torch.cat([image.detach(), image.detach().flip(-1) + 0.1])
    rows = torch.zeros(2, dtype=torch.long, device=image.device)
    modes = []
    for size, inputs in ((1, one.model_inputs.swap(image, image.detach())), (2, one.model_inputs.pick(rows, pair))):
        mode = AttentionMode({"A": ALL_CALLS}, batch=size)
        with torch.no_grad(), mode:
            run_model(one.model, inputs)
        modes.append(mode)
    order = verify.folded_order(*modes)
    name = "order of heads folded into the batch"
    if order is None:
        return base, [Check(name, False, "neither batch first nor heads first: explain the inputs one by one")]
    return replace(base, heads_first=order), [Check(name, True, "heads first" if order else "batch first")]
