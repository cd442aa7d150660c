"""Bi-attn: attention perception by head or by token, times reasoning feedback."""

from __future__ import annotations

from torch import Tensor

from vitrail.capture.trace import ALL, Block, Needs
from vitrail.methods._path_gradient import path_gradient
from vitrail.methods.cost import gradient_passes
from vitrail.methods.probe import ProbedTrace
from vitrail.methods.registry import Applies, choose, register

#: First blocks of the authors' scripts, counted from 0.
STARTS = {"head": 3, "token": 6}


def _needs(variant: str, **_: object) -> Needs:
    return {"A": ALL, "dA": ALL} if variant == "head" else {"A_mean": ALL, "V": ALL, "stream": ALL}


@register(
    "bi_attn",
    "Bi-attn",
    "path",
    cite="chen2023beyond",
    needs=_needs,
    score="logit",
    variants={
        **{v: {"variant": v} for v in STARTS},
        "bert": {"start": -1},
        "quick": {"steps": 3},
        "preview": {"steps": 8},
    },
    applies=Applies(excluded={"pool": "an attention pool has no skip connection"}),
    cost=gradient_passes("steps"),
)
def bi_attn(
    trace: ProbedTrace,
    *,
    variant: str = "head",
    start: int | None = None,
    steps: int = 20,
    feedback: bool = True,
) -> Tensor:
    """The readout's row of R ⊙ W: R grows by R ← R + M·R, W is the mean over heads of (path-averaged dA)⁺.

    Args:
        trace: The pass, with gradients.
        variant: M weighs heads by the mean of |Aᵀ·dA| ("head"), or tokens by ‖V·Wo‖/‖X‖ ("token").
        start: First block; 3 for heads and 6 for tokens by default, but never beyond the last. −1 keeps the last block
            only, as the released code for text models has it.
        steps: Number of images on the path, both ends included.
        feedback: Whether W takes part; without it the variant "token" is class-agnostic.

    Returns:
        Relevance of patches, shape (b, S), not negative.
    """
    choose("variant", variant, STARTS)
    total = len(trace.blocks)
    first = min(STARTS[variant] if start is None else start, total - 1)
    weigh = _by_head if variant == "head" else _by_token
    R: Tensor | None = None
    for block in trace.blocks[first:]:
        M = weigh(block)
        # (I + M)·R without an identity in memory: the first block's R is I.
        R = M.clone() if R is None else R + M @ R + M
    assert R is not None
    perception = R  # the identity is added at the readout
    W = path_gradient(trace.probe, steps).clamp_min(0).mean(1) if feedback else None
    r = trace.readout.expand(len(R), -1)
    if W is None:
        return trace.patches((r.unsqueeze(-1) * perception).sum(1) + r)
    diagonal = r * W.diagonal(dim1=-2, dim2=-1)
    return trace.patches((r.unsqueeze(-1) * perception * W).sum(1) + diagonal)


def _by_head(block: Block) -> Tensor:
    importance = (block.A.transpose(-2, -1) @ block.dA).abs().mean((-2, -1))
    importance = importance / importance.sum(1, keepdim=True)
    return (importance[..., None, None] * block.A).sum(1)


def _by_token(block: Block) -> Tensor:
    value: Tensor = block.V.transpose(1, 2).flatten(2) @ block.Wo.T
    ratio: Tensor = value.norm(dim=-1) / block.X.norm(dim=-1)
    return block.A_mean * ratio.unsqueeze(-2)
