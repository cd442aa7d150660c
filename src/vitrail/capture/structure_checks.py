"""Checks of a structure on the pass it was measured on: residual stream, mixing, attention pool, folded heads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from vitrail.capture import verify
from vitrail.capture.attention import AttentionMode
from vitrail.capture.attention_call import Call
from vitrail.capture.model_call import run_model
from vitrail.capture.model_structure import ModelStructure
from vitrail.capture.structure_pass import ALL_CALLS, StructurePass
from vitrail.capture.value_mixing import mixed_by_value
from vitrail.capture.verify import TOLERANCE, Check

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
    below = None if highest is None else list(live).index(highest) + 1
    if below is None and separate and one.shared > verify.SILENT**2:
        below, share = 0, one.shared**0.5
    untested = None
    if below is None:
        by_value, untested = mixed_by_value(one, base, live)
        below, share = by_value or (None, share)
    if untested is not None:
        detail = f"not tested for tokens that are mixed without a gradient: {untested}"
        return replace(base, notes=(*base.notes, detail)), [Check(name, None, detail)]
    if below is None:
        return base, [Check(name, True, f"share of the gradient that leaks to other tokens {share:.1e}")]
    blocks = sum(not layer.pool for layer in base.layers)
    repeated = _repeated_blocks(one.model, blocks)
    place = _between(one.model, base, below)
    if one.mode.convolutions and not repeated:
        detail = (
            f"convolutions mix tokens as well (share {share:.1e}, last {place}): "
            "methods that read attention see part of the mixing"
        )
        return replace(base, notes=(*base.notes, detail)), [Check(name, None, detail)]
    seen = f"{repeated} blocks mix tokens, attention was seen in {blocks}: " if repeated else ""
    detail = f"{seen}tokens are mixed {place}, by something else than recognised attention (share {share:.1e})"
    return replace(base, kind="unseen"), [Check(name, False, detail)]


def _between(model: nn.Module, base: ModelStructure, below: int) -> str:
    """Between which blocks something lies that comes before the attention of a block, with the modules that have hooks.

    Args:
        model: The model.
        base: Its structure.
        below: The block in front of which it lies, at least behind the attention of the one before.
    """
    names = [_block_name(layer.projection, i) for i, layer in enumerate(base.layers)]
    hooked = [
        name
        for name, m in model.named_modules()
        if m._forward_hooks or m._forward_pre_hooks  # noqa: SLF001
    ]
    hooks = f" (forward hooks on {', '.join(name or 'the model' for name in hooked[:4])})" if hooked else ""
    if below == 0:
        return f"before the attention of {names[0]}{hooks}"
    if below >= len(names):
        return f"behind the attention of {names[-1]}{hooks}"
    return f"between the attention of {names[below - 1]} and that of {names[below]}{hooks}"


def _block_name(projection: str | None, index: int) -> str:
    """Name of a block's module, from that of its output projection.

    Example:
        >>> _block_name("encoder.layers.3.attn.proj.weight", 3)
        'encoder.layers.3'
    """
    parts = [] if projection is None else projection.split(".")
    last = max((i for i, part in enumerate(parts) if part.isdecimal()), default=None)
    return f"block {index}" if last is None else ".".join(parts[: last + 1])


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
