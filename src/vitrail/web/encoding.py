"""JSON encoding of maps and words: compact, exact to 1/32767 of the maximum, and without NaN."""

from __future__ import annotations

import base64
from math import isfinite
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitrail.explanation import Explanation

INT16_MAX = 32767


def encode_map(values: Tensor, signed: bool) -> dict[str, Any]:
    """Encode a map, shape (rows, columns), as little-endian 16-bit integers in base64 and a scale.

    A value is its integer times the scale. Values that are not finite become 0.

    Example:
        >>> encode_map(torch.tensor([[0.0, 1.0]]), signed=False)["data"], encode_map(torch.zeros(1, 2), False)["scale"]
        ('AAD/fw==', 1.0)
    """
    array = np.nan_to_num(values.detach().double().cpu().numpy(), nan=0.0, posinf=0.0, neginf=0.0)
    maximum = float(np.abs(array).max())
    scale = maximum / INT16_MAX if maximum / INT16_MAX > 0 else 1.0
    data = np.rint(array / scale).clip(-INT16_MAX, INT16_MAX).astype("<i2")
    return {
        "shape": [int(n) for n in array.shape], "scale": scale, "data": base64.b64encode(data.tobytes()).decode(),
        "signed": signed, "low": float(array.min()), "high": float(array.max()),
    }  # fmt: skip


def decode_map(encoded: dict[str, Any]) -> np.ndarray[Any, Any]:
    """Decode a map, shape (rows, columns).

    Example:
        >>> decode_map(encode_map(torch.tensor([[0.5, -1.0]]), signed=True)).round(3)
        array([[ 0.5, -1. ]])
    """
    data = np.frombuffer(base64.b64decode(encoded["data"]), "<i2").astype(np.float64)
    return data.reshape(encoded["shape"]) * encoded["scale"]  # type: ignore[no-any-return]


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
    shades, scores = (torch.nan_to_num(t[k].double(), 0.0, 0.0, 0.0).tolist() for t in (text.shades, text.scores))
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
