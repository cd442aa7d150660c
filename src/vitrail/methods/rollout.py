"""Attention rollout: attention multiplied through the blocks, skip connections included."""

from __future__ import annotations

import torch
from torch import Tensor

from vitrail.capture.layout import index_tensor
from vitrail.capture.trace import Block, Needs, Trace
from vitrail.errors import OptionError
from vitrail.methods._propagate import row
from vitrail.methods._streams import rolled_relevance
from vitrail.methods.registry import Applies, choose, register, within


def _needs(start: int, fusion: str, discard: float, faults: str, **_: object) -> Needs:
    where = slice(start, None)
    if fusion != "mean":
        return {"A": where}
    return {"A_mean": where} if discard or faults != "none" else {"attention_mean": where}


@register(
    "rollout",
    "Rollout",
    "attention",
    cite="abnar2020quantifying",
    class_specific=False,
    needs=_needs,
    variants={
        "chefer": {"start": 1},
        "per_head": {"fusion": "per_head"},
        "vit_explain": {"discard": 0.9, "faults": "vit_explain"},
    },
    applies=Applies(stitched=True, streams=True),
)
def rollout(
    trace: Trace,
    *,
    start: int = 0,
    normalise: bool = True,
    fusion: str = "mean",
    discard: float = 0.0,
    faults: str = "none",
) -> Tensor:
    """The readout row of the product of (A + I) over the blocks, later blocks on the left.

    Args:
        trace: The pass.
        start: First block of the product; scripts that reproduce published ViT-B numbers leave out block 0.
        normalise: Divide each row of A + I by its sum. Rows of attention sum to one, so this only changes the scale.
        fusion: How heads are joined: "mean", "max", "min", or "per_head" (one product a head, averaged at the end).
        discard: Share of each joined matrix's smallest entries to set to zero.
        faults: "vit_explain" repeats that repository's released behaviour: rows are normalised along the wrong axis,
            and the first entry of the matrix is never discarded.

    Returns:
        Relevance of patches, shape (b, S).
    """
    choose("fusion", fusion, ("mean", "max", "min", "per_head"))
    choose("faults", faults, ("none", "vit_explain"))
    if not 0 <= discard < 1:
        raise OptionError(f"discard={discard} is not a share: it must be at least 0 and below 1")
    within("start", start, len(trace.blocks), "blocks")
    if trace.streams is not None:
        if start or fusion == "per_head" or faults != "none" or not normalise:
            raise OptionError("on several streams of tokens rollout takes fusion=mean, max or min, and discard, alone")
        matrices = [drop_smallest(_fuse(block, fusion), discard) for block in trace.blocks]
        return trace.patches(rolled_relevance(trace.streams, matrices, trace.readouts))
    blocks = trace.blocks[start:]
    v = trace.readout.expand(blocks[-1].attention.size[0], -1)
    if fusion == "mean" and not discard and faults == "none":
        for block in reversed(blocks):
            u = v / (block.attention.row_sums() + (not block.pool)) if normalise else v
            v = block.attention.mean_row(u) + (0 if block.pool else u)
        return trace.patches(v)
    if fusion == "per_head":
        v = v[:, None].expand(-1, blocks[-1].A.shape[1], -1)
    for block in reversed(blocks):
        M = drop_smallest(_fuse(block, fusion), discard, keep_first=faults == "vit_explain", valid=trace.valid)
        if faults == "vit_explain":
            M = (M + torch.eye(*M.shape[-2:], dtype=M.dtype, device=M.device)) / 2
            v = row(v, M / M.sum(-1).unsqueeze(-2))
            continue
        skip = 0.0 if block.pool else 1.0
        u = v / (M.sum(-1) + skip) if normalise else v
        v = row(u, M) if block.pool else row(u, M) + u
    return trace.patches(v.mean(1) if fusion == "per_head" else v)


def _fuse(block: Block, fusion: str) -> Tensor:
    if fusion == "mean":
        return block.A_mean if "A_mean" in block else block.A.mean(1)
    if fusion == "per_head":
        return block.A
    return block.A.amax(1) if fusion == "max" else block.A.amin(1)


def drop_smallest(M: Tensor, share: float, keep_first: bool = False, valid: Tensor | None = None) -> Tensor:
    """Set a share of each matrix's entries, the smallest, to zero; the first may be spared, padding does not count."""
    if not share:
        return M
    flat = M.flatten(-2)
    if valid is None:
        smallest = flat.topk(int(flat.shape[-1] * share), largest=False).indices
        dropped = flat.scatter(-1, smallest, 0.0)
    else:
        valid = valid.expand(len(M), -1)  # one row where all inputs have the same padding
        there = (valid[:, :, None] & valid[:, None, :]).flatten(-2).view(len(M), *[1] * (flat.dim() - 2), -1)
        # A table by number of tokens: counting them here would synchronise with the GPU.
        by_count = tuple(int(count**2 * share) for count in range(valid.shape[-1] + 1))
        most = index_tensor(by_count, M.device)[valid.sum(-1)]
        place = torch.where(there, flat, torch.inf).argsort(dim=-1, stable=True).argsort(dim=-1)
        dropped = torch.where(place < most.view(len(M), *[1] * (flat.dim() - 1)), 0.0, flat)
    if keep_first:
        dropped[..., 0] = flat[..., 0]
    return dropped.reshape(M.shape)
