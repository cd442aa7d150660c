"""What a hand-written forward pass keeps, and the gradients taken from it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

Classes = Tensor | Sequence[int]


@dataclass
class BlockPass:
    """What one transformer block computed (b images, n tokens, H heads of width dh, model width d).

    Weights are in the orientation of the formulas, ``y = x @ W + b``: the transpose of what a torch Linear stores.
    Rows ``h * dh`` to ``(h + 1) * dh`` of ``Wo`` belong to head h; so do the same columns of ``Wv``.

    Attributes:
        X: Residual stream entering the block, shape b, n, d.
        LN1: First layer norm of X, shape b, n, d.
        Q: Queries, shape b, H, n, dh. K and V likewise.
        O_: Scaled attention logits (the O of the formulas), shape b, H, n, n.
        A: Softmax of O_ over keys; rows are queries, shape b, H, n, n.
        Z: Attention output of each head before the projection, shape b, H, n, dh.
        X_mid: Residual stream between attention and MLP, shape b, n, d.
        LN2: Second layer norm, of X_mid, shape b, n, d.
        F_raw: MLP output before LayerScale, shape b, n, d.
        F: MLP branch output as it is added to the stream (after LayerScale), shape b, n, d.
        Wv: Value projection, shape d, d; bv its bias, shape d (zeros where the model has none).
        Wo: Output projection, shape d, d; bo its bias, shape d (zeros where the model has none).
        gamma1: LayerScale of the attention branch, shape d, or None; gamma2 that of the MLP branch.
    """

    X: Tensor
    LN1: Tensor
    Q: Tensor
    K: Tensor
    V: Tensor
    O_: Tensor
    A: Tensor
    Z: Tensor
    X_mid: Tensor
    LN2: Tensor
    F_raw: Tensor
    F: Tensor
    Wv: Tensor
    bv: Tensor
    Wo: Tensor
    bo: Tensor
    gamma1: Tensor | None
    gamma2: Tensor | None


@dataclass
class Pass:
    """One recorded forward pass.

    Attributes:
        blocks: The record of each block, first to last.
        X_last: Residual stream leaving the last block, shape b, n, d.
        logits: Class scores, shape b, classes.
        prefix: Number P of tokens in front of the patches (class, distillation, registers).
        grid: Rows and columns of the patch grid.
        r: Weights with which the head reads the final tokens, shape n.
        score: What ``grads`` differentiates when it is not told otherwise.
        model: The model that was run, for replicas that run it again.
        images: Its pixels in float64, the leaf of the graph, shape b, channels, height, width.
    """

    blocks: list[BlockPass]
    X_last: Tensor
    logits: Tensor
    prefix: int
    grid: tuple[int, int]
    r: Tensor
    score: str
    model: Any
    images: Tensor

    def read(self, matrix: Tensor) -> Tensor:
        """Read a token-by-token matrix, shape n, n, the way the head reads tokens; keep patch columns, shape S."""
        return (self.r @ matrix)[self.prefix :]


def softmax_rows(x: Tensor) -> Tensor:
    """Softmax of the last axis; the row maximum is taken off first only so that exp cannot overflow."""
    e = torch.exp(x - x.amax(dim=-1, keepdim=True).detach())
    return e / e.sum(dim=-1, keepdim=True)


def score_of(logits: Tensor, classes: Classes, score: str) -> Tensor:
    """Sum over the batch of the score of one class per image; images do not mix, so one backward serves them all.

    A minus in front of the score's name gives its negative.
    """
    if score.startswith("-"):
        return -score_of(logits, classes, score[1:])
    total = torch.zeros((), dtype=torch.float64)
    for i, c in enumerate(classes):
        z = logits[i]
        if score == "logit":
            total = total + z[int(c)]
        elif score == "prob":
            total = total + softmax_rows(z)[int(c)]
        elif score == "logprob":
            total = total + torch.log(softmax_rows(z)[int(c)])
        else:
            raise ValueError(f"unknown score {score!r}")
    return total


def target(pass_: Pass, classes: Classes, score: str | None = None) -> Tensor:
    """The score of ``score_of`` for the logits of a pass."""
    return score_of(pass_.logits, classes, score or pass_.score)


def gradients_at(nodes: list[Tensor], pass_: Pass, classes: Classes, score: str | None = None) -> list[Tensor]:
    """Gradients of the score at any nodes of the graph of a pass, one tensor of the node's shape each."""
    return list(torch.autograd.grad(target(pass_, classes, score), nodes, retain_graph=True))


def grads(pass_: Pass, classes: Classes, score: str | None = None) -> tuple[list[Tensor], list[Tensor]]:
    """Gradients of the score at every attention map and every query tensor.

    Returns:
        Two lists with one entry per block: dA, each of shape b, H, n, n, and dQ, each of shape b, H, n, dh.
    """
    nodes = [block.A for block in pass_.blocks] + [block.Q for block in pass_.blocks]
    values = torch.autograd.grad(target(pass_, classes, score), nodes, retain_graph=True)
    return list(values[: len(pass_.blocks)]), list(values[len(pass_.blocks) :])
