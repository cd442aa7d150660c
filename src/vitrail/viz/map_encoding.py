"""Maps as JSON: compact, exact to 1/32767 of the maximum, and without NaN."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
from torch import Tensor

INT16_MAX = 32767


def encode_map(values: Tensor, signed: bool) -> dict[str, Any]:
    """Encode a map, shape (rows, columns), as little-endian 16-bit integers in base64 and a scale.

    A value is its integer times the scale. Values that are not finite become 0.

    Example:
        >>> import torch
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
        >>> import torch
        >>> decode_map(encode_map(torch.tensor([[0.5, -1.0]]), signed=True)).round(3)
        array([[ 0.5, -1. ]])
    """
    data = np.frombuffer(base64.b64decode(encoded["data"]), "<i2").astype(np.float64)
    return data.reshape(encoded["shape"]) * encoded["scale"]  # type: ignore[no-any-return]
