"""Greedy decoding: the likeliest token at each step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn

from vitrail.capture.frozen import frozen
from vitrail.errors import ModelError
from vitrail.targets.token_context import KEPT_POSITIONS


def greedy_tokens(model: nn.Module, ids: Sequence[int], count: int, end: int | None = None) -> tuple[int, ...]:
    """Tokens that a model writes after a text, the likeliest at each step.

    Settings for sampling and penalties in the model's configuration are not used: what is generated is what the scores
    of the model say.
    """
    takes = signature(model.forward).parameters
    ends = _end_tokens(model) | ({end} if end is not None else set())
    parameter = next(iter(model.parameters()), None)
    device = None if parameter is None else parameter.device
    given: dict[str, Any] = {"use_cache": True} if "use_cache" in takes else {}
    given |= {KEPT_POSITIONS: 1} if KEPT_POSITIONS in takes else {}
    found: list[int] = []
    row = torch.tensor([list(ids)], device=device)
    step, cache = row, None
    with frozen(model), torch.no_grad():
        while len(found) < count:
            known: dict[str, Any] = {} if cache is None else {"past_key_values": cache}
            output = model(input_ids=step, **given, **known)
            index = int(token_scores(output)[0, -1].argmax())
            if index in ends:
                break
            found.append(index)
            following = torch.tensor([[index]], device=device)
            row = torch.cat([row, following], 1)
            cache = getattr(output, "past_key_values", None) if "past_key_values" in takes else None
            step = row if cache is None else following  # without a cache, the whole text runs again
    return tuple(found)


def greedy_continuation(
    model: nn.Module, run: Callable[[Sequence[int]], Any], count: int, end: int | None = None
) -> tuple[int, ...]:
    """Tokens that a model writes, the likeliest at each step, where every step is a call of the whole model.

    Args:
        model: The model.
        run: Function from the tokens so far to the output of the model for them.
        count: Most tokens.
        end: Token that ends a text, besides those that the model names; it is not returned.
    """
    ends = _end_tokens(model) | ({end} if end is not None else set())
    found: list[int] = []
    with frozen(model), torch.no_grad():
        while len(found) < count:
            index = int(token_scores(run(found))[0, -1].argmax())
            if index in ends:
                break
            found.append(index)
    return tuple(found)


def token_scores(output: Any) -> Tensor:
    """Scores of the next token at each position of an output, shape (n, positions, vocabulary)."""
    first = output[0] if isinstance(output, tuple) else output
    found = first if isinstance(first, Tensor) else getattr(output, "logits", None)
    found = output.get("logits") if isinstance(output, Mapping) else found
    if not isinstance(found, Tensor) or found.dim() != 3:
        raise ModelError(f"a {type(output).__name__} has no scores of the next token: load a language model")
    return found


def _end_tokens(model: nn.Module) -> set[int]:
    """Tokens that end a text by the model's configuration."""
    config: Any = getattr(model, "generation_config", None) or getattr(model, "config", None)
    stated = getattr(config, "eos_token_id", None)
    return set(stated) if isinstance(stated, list | tuple) else set() if stated is None else {int(stated)}
