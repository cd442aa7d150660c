"""Weights from files, without ever running what is in them."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from vitrail.errors import WeightsError

_WRAPPERS = ("state_dict", "model_state_dict", "model", "model_ema", "module", "net")
_PREFIXES = ("module.", "_orig_mod.", "model.")


def read_weights(path: str | Path) -> dict[str, Tensor]:
    """A state dict from a ``.safetensors`` file, or from a torch file that holds tensors and nothing else.

    Raises:
        WeightsError: The file is missing, damaged, or would have to run code to be read.
    """
    path = Path(path)
    if not path.is_file():
        raise WeightsError(f"{path} is not a file: --weights takes a .safetensors, .pth, .pt or .bin file")
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            return dict(load_file(path))
        with path.open("rb") as file:
            start = file.read(2)
        if start not in (b"PK", b"\x80\x02"):  # what torch writes: a zip archive, or a pickle of the old kind
            raise WeightsError(f"{path} cannot be read as weights: it is neither a safetensors nor a torch file")
        loaded = torch.load(path, map_location="cpu", weights_only=True)
    except WeightsError:
        raise
    except pickle.UnpicklingError as error:
        raise WeightsError(
            f"{path} holds more than tensors, and reading it could run code: save it as safetensors, or as "
            "torch.save(model.state_dict(), …)"
        ) from error
    except Exception as error:
        raise WeightsError(f"{path} cannot be read as weights ({_line(error)}): it may be damaged") from error
    return _tensors(loaded, path)


def fit(model: nn.Module, weights: Mapping[str, Tensor], origin: str) -> None:
    """Load a state dict strictly, after taking off prefixes that wrappers leave in the names.

    Raises:
        WeightsError: Names which keys are missing, left over, or of another shape.
    """
    own = model.state_dict()
    weights = _strip(weights, set(own))
    missing = [k for k in own if k not in weights]
    extra = [k for k in weights if k not in own]
    shapes = [
        f"{k} {tuple(weights[k].shape)} instead of {tuple(own[k].shape)}"
        for k in own
        if k in weights and weights[k].shape != own[k].shape
    ]
    if missing or extra or shapes:
        parts = [f"{len(keys)} {what}: {_some(keys)}" for what, keys in
                 (("missing", missing), ("unexpected", extra), ("of another shape", shapes)) if keys]  # fmt: skip
        raise WeightsError(f"{origin} does not fit {type(model).__name__}: " + "; ".join(parts))
    model.load_state_dict(dict(weights))


def _strip(weights: Mapping[str, Tensor], own: set[str]) -> Mapping[str, Tensor]:
    while not own & set(weights):
        for prefix in _PREFIXES:
            if weights and all(k.startswith(prefix) for k in weights):
                weights = {k[len(prefix) :]: v for k, v in weights.items()}
                break
        else:
            return weights
    return weights


def _tensors(loaded: object, path: Path) -> dict[str, Tensor]:
    while isinstance(loaded, Mapping):
        inner = next((loaded[w] for w in _WRAPPERS if isinstance(loaded.get(w), Mapping)), None)
        if inner is None:
            break
        loaded = inner
    if not isinstance(loaded, Mapping):
        raise WeightsError(f"{path} holds a {type(loaded).__name__}, not a state dict")
    tensors = {str(k): v for k, v in loaded.items() if isinstance(v, Tensor)}
    if not tensors:
        raise WeightsError(f"{path} holds no tensors")
    return tensors


def _some(keys: list[str]) -> str:
    return ", ".join(keys[:4]) + (f" and {len(keys) - 4} more" if len(keys) > 4 else "")


def _line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
