"""Maps and words of an explanation as JSON, without NaN."""

from __future__ import annotations

from math import isfinite
from typing import Any

import torch

from vitrail.pipeline.explanation import Explanation
from vitrail.viz.map_encoding import encode_map


def map_json(explanation: Explanation, k: int) -> dict[str, Any] | None:
    """The map of target ``k`` at the method's own resolution, patches or pixels; None for a text.

    Maps of videos have a first axis, time. Those of spectrograms are turned: frequency upwards, time to the right.
    """
    if explanation.of_texts:
        return None
    values = explanation.grid[0, k]
    is_sound = explanation.signal is not None and values.dim() == 2
    return encode_map(values.T.flip(0) if is_sound else values, explanation.signed)


def words_json(explanation: Explanation, k: int) -> list[dict[str, Any]] | None:
    """The words of a text with their raw scores and scores scaled to [0, 1] or [-1, 1]; None for an image.

    For a prompt, the words of the prompt.
    """
    if explanation.text is None:
        return None
    text = explanation.text[0]
    if len(explanation.text) > 1 or len(text.scores) == 1:  # prompts have a text for each target
        text, k = explanation.text[min(k, len(explanation.text) - 1)], 0
    shades, scores = (torch.nan_to_num(t[k].double(), 0.0, 0.0, 0.0).tolist() for t in (text.normalised, text.scores))
    named = explanation.named_targets is not None
    return [
        {"text": word, "start": start, "end": end, "score": shade, "raw": raw, "seen": seen}
        for word, (start, end), shade, raw, seen in zip(text.words, text.spans, shades, scores, text.seen, strict=True)
        if not (named and word.startswith("<") and word.endswith(">"))  # marks of start and end
    ]


def replace_non_finite(value: Any) -> Any:
    """Replace numbers that are not finite by None, recursively: JSON has no NaN.

    Example:
        >>> replace_non_finite({"a": [1.0, float("nan")], "b": ("x", float("inf"))})
        {'a': [1.0, None], 'b': ['x', None]}
    """
    if isinstance(value, dict):
        return {str(key): replace_non_finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [replace_non_finite(item) for item in value]
    if isinstance(value, float) and not isfinite(value):
        return None
    return value
