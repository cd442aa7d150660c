"""Faithfulness to a language model: how the log-probability of a continuation changes when words of the prompt go."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from inspect import signature
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import nn
from torch.nn.utils.rnn import pad_sequence

from vitrail.capture.frozen import frozen
from vitrail.errors import InputError
from vitrail.scores.statistics import Array
from vitrail.targets.token_context import KEPT_POSITIONS

SHARES = (0.05, 0.1, 0.2, 0.5)
"""Shares of the units of a prompt that are removed or kept."""

Tokens = Sequence[int]
LogProbability = Callable[[Sequence[Tokens]], ArrayLike]


def continuation_log_probability(
    model: nn.Module, continuations: Sequence[Tokens], padding: int = 0, batch_size: int = 32
) -> LogProbability:
    """Make the function from prompts to the log-probability of their continuations.

    Args:
        model: A causal language model with ``input_ids`` and ``attention_mask``.
        continuations: Tokens that follow each prompt. The function takes a multiple of as many prompts, in the same
            order: all variants of the first prompt, then those of the second one, and so on.
        padding: Number of the padding token.
        batch_size: Most prompts in one forward pass.

    Returns:
        A function from token lists to the sums of the log-probabilities of the tokens of the continuation, shape (n,).
    """
    device = next(model.parameters()).device
    reduces = KEPT_POSITIONS in signature(model.forward).parameters

    @torch.no_grad()
    def log_probability(prompts: Sequence[Tokens]) -> ArrayLike:
        if not continuations or len(prompts) % len(continuations):
            raise InputError(f"{len(prompts)} prompts are no multiple of {len(continuations)} continuations")
        each = len(prompts) // len(continuations)
        rows = [(list(prompt), list(continuations[i // each])) for i, prompt in enumerate(prompts)]
        order = sorted(range(len(rows)), key=lambda i: len(rows[i][0]) + len(rows[i][1]))  # little padding in a batch
        found = np.zeros(len(rows))
        with frozen(model):
            for start in range(0, len(rows), batch_size):
                part = order[start : start + batch_size]
                texts = [torch.tensor(rows[i][0] + rows[i][1]) for i in part]
                ids = pad_sequence(texts, batch_first=True, padding_value=padding).to(device)
                # Padding after a text changes nothing before it.
                mask = pad_sequence([torch.ones_like(text) for text in texts], batch_first=True).to(device)
                places = [(j, len(rows[i][0]) - 1 + k, t) for j, i in enumerate(part) for k, t in enumerate(rows[i][1])]
                kept = sorted({place for _, place, _ in places})
                only: dict[str, Any] = {KEPT_POSITIONS: torch.tensor(kept, device=device)} if reduces else {}
                logits = model(input_ids=ids, attention_mask=mask, **only)["logits"]
                column = {place: i for i, place in enumerate(kept)} if reduces else dict(zip(kept, kept, strict=True))
                row, place, token = (list(values) for values in zip(*places, strict=True))
                scores = logits[row, [column[one] for one in place]].double().log_softmax(-1)
                chosen = scores[range(len(token)), token].cpu().numpy()
                np.add.at(found, [part[j] for j in row], chosen)
        return found

    return log_probability


def continuation_faithfulness(
    log_probability: LogProbability,
    prompts: Sequence[Tokens],
    scores: Sequence[ArrayLike],
    removable: Sequence[Sequence[bool]],
    units: Sequence[Sequence[int]] | None = None,
    shares: Sequence[float] = SHARES,
) -> dict[str, Array]:
    """Comprehensiveness and sufficiency of relevance for the continuation of a prompt, in log-probability.

    Comprehensiveness ↑ is the decrease of the log-probability when the most relevant units are removed, sufficiency ↓
    that when only they are kept; both are means over the shares, the area over the perturbation curve (AOPC).

    Args:
        log_probability: From token lists to log-probabilities of the continuations, as
            `continuation_log_probability` makes it: all variants of the first prompt, then those of the second one.
        prompts: Tokens of each prompt.
        scores: Relevance of each token of each prompt.
        removable: Which tokens may be removed; the others, such as a start token or the question, are always kept.
        units: Number of the unit of each token; every token is a unit by default. The relevance of a unit is the sum
            over its tokens, and it is removed as a whole.
        shares: Shares of the removable units of a prompt.

    Returns:
        ``comprehensiveness`` and ``sufficiency``, shape (prompts,), and the same with ``_at``, shape (prompts, shares).

    Example:
        >>> def count(prompts):  # a model whose log-probability is the number of sevens in the prompt
        ...     return [float(list(prompt).count(7)) for prompt in prompts]
        >>> found = continuation_faithfulness(count, [[7, 1, 2, 3]], [[9, 1, 1, 1]], [[True] * 4], shares=(0.25,))
        >>> found["comprehensiveness"].tolist(), found["sufficiency"].tolist()
        ([1.0], [0.0])
    """
    variants: list[Tokens] = []
    for row, (prompt, values, may_go) in enumerate(zip(prompts, scores, removable, strict=True)):
        relevance, free = np.asarray(values, np.float64), np.asarray(may_go, np.bool_)
        numbers = np.arange(len(prompt)) if units is None else np.asarray(units[row])
        if not len(prompt) == len(relevance) == len(free) == len(numbers):
            raise InputError(
                f"prompt {row} has {len(prompt)} tokens, {len(relevance)} scores, {len(free)} marks of removable "
                f"tokens and {len(numbers)} units: pass one of each for every token"
            )
        variants.append(prompt)
        variants += _variants(prompt, relevance, free, numbers, shares)
    each = 1 + 2 * len(shares)
    found = np.asarray(log_probability(variants), np.float64).reshape(len(prompts), each)
    without, alone = (found[:, :1] - found[:, start::2] for start in (1, 2))
    return {
        "comprehensiveness": without.mean(1), "sufficiency": alone.mean(1), "comprehensiveness_at": without,
        "sufficiency_at": alone,
    }  # fmt: skip


def _variants(
    prompt: Tokens, relevance: Array, free: NDArray[np.bool_], numbers: NDArray[Any], shares: Sequence[float]
) -> list[Tokens]:
    """For each share, the prompt without its most relevant units, and with no other removable units than these."""
    removable = np.unique(numbers[free])
    totals = np.array([relevance[free & (numbers == unit)].sum() for unit in removable])
    ranked = removable[np.argsort(-totals, kind="stable")]
    variants: list[Tokens] = []
    for share in shares:
        top = np.isin(numbers, ranked[: max(1, round(share * len(ranked)))])
        variants += [[t for t, keep in zip(prompt, kept, strict=True) if keep] for kept in (~free | ~top, ~free | top)]
    return variants
