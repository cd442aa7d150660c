"""Maps and words as they travel: short, exact to a 32767th of their range, and never NaN."""

from __future__ import annotations

import base64
from math import isfinite
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitrail.explanation import Explanation

MOST = 32767


def packed(values: Tensor, signed: bool) -> dict[str, Any]:
    """A map, shape (rows, columns), as JSON: little-endian 16-bit integers in base64 that stand for data × scale.

    Values that are not finite become 0.

    Example:
        >>> packed(torch.tensor([[0.0, 1.0]]), signed=False)["data"], packed(torch.zeros(1, 2), False)["scale"]
        ('AAD/fw==', 1.0)
    """
    array = np.nan_to_num(values.detach().double().cpu().numpy(), nan=0.0, posinf=0.0, neginf=0.0)
    top = float(np.abs(array).max())
    scale = top / MOST if top / MOST > 0 else 1.0
    data = np.rint(array / scale).clip(-MOST, MOST).astype("<i2")
    return {
        "shape": [int(n) for n in array.shape], "scale": scale, "data": base64.b64encode(data.tobytes()).decode(),
        "signed": signed, "low": float(array.min()), "high": float(array.max()),
    }  # fmt: skip


def unpacked(sent: dict[str, Any]) -> np.ndarray[Any, Any]:
    """The map again, shape (rows, columns).

    Example:
        >>> unpacked(packed(torch.tensor([[0.5, -1.0]]), signed=True)).round(3)
        array([[ 0.5, -1. ]])
    """
    data = np.frombuffer(base64.b64decode(sent["data"]), "<i2").astype(np.float64)
    return data.reshape(sent["shape"]) * sent["scale"]  # type: ignore[no-any-return]


def map_of(explanation: Explanation, k: int) -> dict[str, Any] | None:
    """The map of one target as the method gave it: over patches or pixels; None for texts."""
    if explanation.text is not None:
        return None
    return packed(explanation.grid[0, k], explanation.signed)


def words_of(explanation: Explanation, k: int) -> list[dict[str, Any]] | None:
    """Words of a text with their scores, scaled to [0, 1] or [-1, 1] for colours and as they are; None for pictures."""
    if explanation.text is None:
        return None
    one = explanation.text[0]
    shades, scores = (torch.nan_to_num(t[k].double(), 0.0, 0.0, 0.0).tolist() for t in (one.shades, one.scores))
    return [
        {"text": word, "start": start, "end": end, "score": shade, "raw": raw, "seen": seen}
        for word, (start, end), shade, raw, seen in zip(one.words, one.spans, shades, scores, one.seen, strict=True)
    ]


def finite(value: Any) -> Any:
    """The same with None where a number is not finite, all the way down: JSON has no NaN.

    Example:
        >>> finite({"a": [1.0, float("nan")], "b": ("x", float("inf"))})
        {'a': [1.0, None], 'b': ['x', None]}
    """
    if isinstance(value, dict):
        return {str(key): finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [finite(one) for one in value]
    if isinstance(value, float) and not isfinite(value):
        return None
    return value
