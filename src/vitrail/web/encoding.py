"""Maps and words of an explanation as JSON, without NaN."""

from __future__ import annotations

from math import isfinite
from typing import Any

import torch

from vitrail.pipeline.explanation import Explanation
from vitrail.viz.map_encoding import encode_map


def map_json(explanation: Explanation, k: int) -> dict[str, Any] | None:
    """The map of target ``k`` at the method's own resolution, patches or pixels; None for a text."""
    if explanation.text is not None:
        return None
    return encode_map(explanation.grid[0, k], explanation.signed)


def words_json(explanation: Explanation, k: int) -> list[dict[str, Any]] | None:
    """The words of a text with their raw scores and scores scaled to [0, 1] or [-1, 1]; None for an image."""
    if explanation.text is None:
        return None
    text = explanation.text[0]
    shades, scores = (torch.nan_to_num(t[k].double(), 0.0, 0.0, 0.0).tolist() for t in (text.normalised, text.scores))
    return [
        {"text": word, "start": start, "end": end, "score": shade, "raw": raw, "seen": seen}
        for word, (start, end), shade, raw, seen in zip(text.words, text.spans, shades, scores, text.seen, strict=True)
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
