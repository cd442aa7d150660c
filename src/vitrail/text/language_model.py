"""Language models: whether a model is one, how many tokens it takes, and the inputs of a batch of its texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from inspect import signature
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vitrail.capture.frozen import frozen, unwrap
from vitrail.errors import InputError
from vitrail.targets.token_context import KEPT_POSITIONS

#: Names by which configurations state the number of positions.
_LIMITS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "n_ctx")


def is_language_model(model: nn.Module) -> bool:
    """Whether a model returns scores of the next token at each position of a text.

    Hugging Face models state it. Others are called with two tokens, and their output decides.
    """
    module = unwrap(model)
    states = getattr(module, "can_generate", None)
    if callable(states):
        return bool(states())
    if "input_ids" not in _parameters(module):
        return False
    parameter = next(iter(module.parameters()), None)
    ids = torch.zeros(1, 2, dtype=torch.long, device=None if parameter is None else parameter.device)
    try:
        with frozen(module), torch.no_grad():
            output = module(input_ids=ids)
    except Exception:  # noqa: BLE001 - a model that does not take two tokens alone is none
        return False
    found = output if isinstance(output, Tensor) else getattr(output, "logits", None)
    if isinstance(output, Mapping):
        found = output.get("logits")
    return isinstance(found, Tensor) and found.dim() == 3 and found.shape[:2] == (1, 2)


def refuse_without_tokenizer(model: nn.Module, inputs: Any, target: Any) -> None:
    """Refuse a call of a language model whose words cannot be read, or whose targets are unknown, without a tokenizer.

    Args:
        model: The model.
        inputs: A prompt, a chat or several, or a dict of tensors; other inputs pass.
        target: The target of the call; a function, or one of `vitrail.targets`, passes with tensors.
    """
    first = inputs[0] if isinstance(inputs, list | tuple) and inputs else inputs
    written = (isinstance(first, str) and not _is_file(first)) or (isinstance(first, Mapping) and "content" in first)
    unnamed = isinstance(inputs, Mapping) and "input_ids" in inputs and (target is None or isinstance(target, str))
    if not (written or unnamed) or "input_ids" not in _parameters(unwrap(model)) or not is_language_model(model):
        return
    images = isinstance(inputs, Mapping) and any(name.startswith("pixel_values") for name in inputs)
    ids = "" if written or images else ", or target=vitrail.targets.token(id)"
    needed = "processor=transformers.AutoProcessor" if images else "tokenizer=transformers.AutoTokenizer"
    raise InputError(
        f"{type(unwrap(model)).__name__} is a language model, whose words are read by its tokenizer: pass "
        f"{needed}.from_pretrained(…){ids}"
    )


def _is_file(text: str) -> bool:
    try:
        return Path(text).is_file()
    except (OSError, ValueError):  # too long for a name
        return False


def context_limit(model: nn.Module, window: int | None = None) -> int | None:
    """Most tokens of a text that a language model takes, or None if it states no limit."""
    if window is not None:
        return window
    config: Any = getattr(unwrap(model), "config", None)
    if hasattr(config, "get_text_config"):
        config = config.get_text_config()
    stated = (getattr(config, name, None) for name in _LIMITS)
    return next((one for one in stated if isinstance(one, int) and one > 0), None)


def attends_locally(model: nn.Module) -> bool:
    """Whether a model states that some of its tokens attend to a window of others."""
    config: Any = getattr(unwrap(model), "config", None)
    if hasattr(config, "get_text_config"):
        config = config.get_text_config()
    names = ("sliding_window", "attention_chunk_size", "local_attention", "window_size")
    return any(isinstance(getattr(config, name, None), int) for name in names)


def check_length(tokens: int, limit: int | None, what: str) -> None:
    """Refuse a text that is longer than the model's limit."""
    if limit is not None and tokens > limit:
        raise InputError(
            f"{what} has {tokens} tokens, and the model takes {limit}: shorten it by {tokens - limit} tokens, or pass "
            "tokenizer=vitrail.text.TokenizerSettings(tokenizer, window=…) if the model takes more than it states"
        )


def padded_inputs(
    model: nn.Module, rows: Sequence[Sequence[int]], padding_id: int, kept: Sequence[Sequence[int]] | None = None
) -> dict[str, Any]:
    """The arguments of a call for some texts, padded on the right; with ``kept``, scores of these positions alone.

    Padding on the right changes nothing in a causal model: positions count from the first token of a text, and no token
    attends to a later one.
    """
    takes = _parameters(model)
    longest = max(map(len, rows))
    ids = torch.tensor([[*row, *[padding_id] * (longest - len(row))] for row in rows])
    inputs: dict[str, Any] = {"input_ids": ids}
    if "attention_mask" in takes:
        inputs["attention_mask"] = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows])
    elif any(len(row) < longest for row in rows):
        raise InputError("the model takes no attention mask, so prompts of different lengths need batch_size=1")
    if "use_cache" in takes:
        inputs["use_cache"] = False
    if kept is not None and KEPT_POSITIONS in takes:
        # Counted from the end, so that a list serves all texts of the batch. A tensor would be taken for an input.
        inputs[KEPT_POSITIONS] = sorted({position - longest for row in kept for position in row})
    return inputs


def _parameters(model: nn.Module) -> tuple[str, ...]:
    try:
        return tuple(signature(unwrap(model).forward).parameters)
    except (TypeError, ValueError):
        return ()
