"""Leadlight: class-specific relevance of patches, spread over patches that are alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from vitrail.capture.trace import ALL, LAST, Needs, Trace
from vitrail.errors import OptionError
from vitrail.methods._propagate import sum_columns
from vitrail.methods.registry import METHODS, Applies, choose, register

#: Methods, with options, whose relevance can be spread.
METHOD_SOURCES: dict[str, dict[str, Any]] = {"vtranm": {"variant": "af+l"}, "transformer_mm": {"start": 0}}
#: Where the relevance to be spread comes from: one of them, the smaller of their shares, or the last block alone.
SOURCES = (*METHOD_SOURCES, "both", "last")
AT_ONCE = 2**24  # numbers of W, 64 MiB in single precision
#: The form without what counts against the class, which shows the object more than the class.
OBJECT = {"source": "vtranm", "contrast": 0.0, "shift": False}
VARIANTS = {
    "object": OBJECT,
    "single": {"source": "vtranm", "contrast": 1.0},
    "fast": {**OBJECT, "source": "last", "score": "logit"},
    "attention": {**OBJECT, "spread": "attention", "rounds": 1},
}


def _needs(source: str, spread: str, **_: object) -> Needs:
    choose("source", source, SOURCES)
    choose("spread", spread, ("keys", "attention"))
    needs: Needs = {"attention": LAST, "attention_gradient": LAST}
    if source != "last":
        needs = {}
        for name in _methods_of(source):
            needs |= METHODS[name].needed({**METHODS[name].options, **METHOD_SOURCES[name]})
    return {**needs, **({"K": ALL} if spread == "keys" else {"attention_mean": slice(0, -1)})}


@register(
    "leadlight",
    "Leadlight",
    "gradient",
    cite="vitrail",
    needs=_needs,
    score="prob",
    variants=VARIANTS,
    applies=Applies(streams=True),
    stream_needs={"attention": ALL, "attention_gradient": ALL, "K": ALL},
)
def leadlight(
    trace: Trace,
    *,
    source: str = "both",
    contrast: float = 2.0,
    spread: str = "keys",
    power: float = 4,
    rounds: int = 2,
    shift: bool = True,
    mix: float = 0.75,
) -> Tensor:
    """Relevance of the patches, mixed with its average over patches with similar keys.

    R' = W·W·R, where W is the positive cosine between the keys of two patches to some power, with rows that sum to
    one; R and R' are scaled to a maximum of one and mixed. The result is scaled to a sum of one: the relevance of a
    patch is a share of what speaks for the class, which can be compared with its share for another class.

    R is r⁺·(r⁺ / (p·r⁺ + (1 − p)·r⁻))² with r⁺ the relevance for the class, r⁻ the relevance against it (the same from
    the negative gradient), both scaled to sum to one in the ratio, and p the probability of the class, one half for
    targets that are no class. r is the smaller of the shares that VTranM and Transformer-MM give to a patch.

    On models of several streams of tokens r is that of Transformer-MM, since the lengths of VTranM are defined in one
    stream, and the keys are those of the attention inside the stream that is explained.

    Args:
        trace: The pass, with gradients.
        source: Where the relevance r comes from: "vtranm" (with lengths, without cosines), "transformer_mm", "both" for
            the smaller of the shares by these two, or "last" for the last block alone, which needs a backward through
            one block only.
        contrast: Exponent of the ratio; with 0, R is r⁺.
        spread: What W is made of: "keys" of the upper half of the blocks, those of each block scaled to unit length; or
            "attention", its mean between patches over the blocks below the last, without the lower quarter.
        power: Exponent of the cosine; a higher one spreads over fewer patches.
        rounds: How often W is applied.
        shift: Subtract from R' its smallest value: averages over patches are positive everywhere.
        mix: Share of R' in the result, from 0 (R alone) to 1 (R' alone).

    Returns:
        Relevance of patches, shape (b, S), not negative, with a sum of one; zeros where nothing speaks for the
        class.
    """
    if not 0 <= mix <= 1 or not power > 0 or rounds < 1 or contrast < 0:
        raise OptionError(
            f"expected mix from 0 to 1, power > 0, rounds ≥ 1 and contrast ≥ 0, got {mix=}, {power=}, {rounds=} and "
            f"{contrast=}"
        )
    if trace.streams is not None:
        if source == "last" or spread != "keys":
            raise OptionError(
                'source="last" and spread="attention" are defined for one stream of tokens, not for several'
            )
        source = "transformer_mm"
    r = _source(trace, source)
    R = averaged = _scaled(r * _distinction(trace, r, source) ** contrast if contrast else r)
    spread_once = _by_keys(trace, power) if spread == "keys" else _by_attention(trace)
    for _ in range(rounds):
        averaged = spread_once(averaged)
    if shift:
        averaged = _shifted(trace, averaged)
    trace.note("source", R)
    trace.note("spread", averaged)
    return _shares((1 - mix) * R + mix * _scaled(averaged))


def _source(trace: Trace, source: str) -> Tensor:
    if source == "last":
        attention = trace.blocks[-1].attention
        return trace.patches(attention.weighted_rows(trace.readout.expand(attention.size[0], -1)).mean(1))
    found = [
        METHODS[name].apply(trace, {**METHODS[name].options, **METHOD_SOURCES[name]}) for name in _methods_of(source)
    ]
    return found[0] if len(found) == 1 else torch.minimum(*map(_shares, found))


def _methods_of(source: str) -> Sequence[str]:
    return tuple(METHOD_SOURCES) if source == "both" else (source,)


def _distinction(trace: Trace, relevance: Tensor, source: str) -> Tensor:
    """Ratio of the share of relevance for the class at each patch to the mean of the shares for and against it, (b, S).

    The mean is weighted by the probabilities that the class is right and that it is wrong. So the ratio is 1 where the
    model is certain of the class, and where what speaks for and against it has the same shares.
    """
    own, against = _shares(relevance), _shares(_source(trace.opposed(), source))
    p = 0.5 if trace.probability is None else trace.probability.to(own)[:, None]
    mean = p * own + (1 - p) * against
    return own / mean.clamp_min(torch.finfo(mean.dtype).tiny)


def _shares(relevance: Tensor) -> Tensor:
    return relevance / relevance.sum(-1, keepdim=True).clamp_min(torch.finfo(relevance.dtype).tiny)


def _by_keys(trace: Trace, power: float) -> Callable[[Tensor], Tensor]:
    """W as a function on relevance, shape (b, S); of large inputs a few rows of W are in memory at a time."""
    own = [trace.blocks[i] for i in _own_layers(trace)]
    upper = own[len(own) // 2 :]
    # Scaled so that their products are means of the cosines over the blocks.
    keys = torch.cat([_unit(trace.patches(block.narrow("K"), -2), len(upper) ** -0.5) for block in upper], -1)
    batch, count = keys.shape[:2]
    at_once = max(1, AT_ONCE // (batch * count))
    pieces = [slice(start, start + at_once) for start in range(0, count, at_once)]
    kept = [_affinity(trace, keys, power, pieces[0])] if len(pieces) == 1 else None

    def spread(relevance: Tensor) -> Tensor:
        parts = kept or (_affinity(trace, keys, power, rows) for rows in pieces)
        return torch.cat([(W @ relevance.unsqueeze(-1)).squeeze(-1) for W in parts], -1)

    return spread


def _own_layers(trace: Trace) -> Sequence[int]:
    """Layers whose keys are those of the tokens that are explained; of several streams, attention inside of one."""
    streams = trace.streams
    if streams is None:
        return range(len(trace.blocks))
    reading = [i for i, layer in enumerate(streams.layers) if layer.keys == streams.explained]
    return [i for i in reading if streams.layers[i].queries == streams.explained] or reading


def _unit(keys: Tensor, factor: float) -> Tensor:
    """Keys of all heads, shape (b, H, S, dh), as one vector a patch, brought to a length, shape (b, S, H·dh)."""
    joined = keys.transpose(1, 2).flatten(2)
    wide = normalize(joined.to(torch.promote_types(joined.dtype, torch.float32)), dim=-1).mul_(factor)
    return wide.to(keys.dtype)


def _affinity(trace: Trace, keys: Tensor, power: float, rows: slice) -> Tensor:
    """Some rows of W."""
    cosines = keys[:, rows] @ keys.transpose(-2, -1)
    W = cosines.to(torch.promote_types(keys.dtype, torch.float32)).clamp_min_(0) ** power
    if trace.valid is not None:  # padding neither gives nor gets relevance
        valid = trace.patches(trace.valid)
        W = W * (valid[:, rows, None] & valid[:, None])
    return W / W.sum(-1, keepdim=True).clamp_min(torch.finfo(W.dtype).tiny)


def _by_attention(trace: Trace) -> Callable[[Tensor], Tensor]:
    total = len(trace.blocks)
    if total < 2:
        raise OptionError('spread="attention" needs a block below the last, and this model has one: use "keys"')
    below = trace.blocks[min(total // 4, total - 2) : -1]

    def spread(relevance: Tensor) -> Tensor:
        u = trace.on_tokens(relevance, below[0].attention.size[2])[:, None]
        return trace.patches(sum_columns(below, u)[:, 0]) / len(below)

    return spread


def _shifted(trace: Trace, relevance: Tensor) -> Tensor:
    """Relevance with a minimum of zero, padding left out."""
    if trace.valid is None:
        return relevance - relevance.amin(-1, keepdim=True)
    valid = trace.patches(trace.valid)
    return (relevance - relevance.masked_fill(~valid, torch.inf).amin(-1, keepdim=True)) * valid


def _scaled(relevance: Tensor) -> Tensor:
    top = relevance.amax(-1, keepdim=True)
    return relevance / top.where(top > 0, top.new_ones(()))
