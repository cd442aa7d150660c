"""Read weights from files without executing code, and load them into a model."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from vitrail.errors import WeightsError

_WRAPPER_KEYS = ("state_dict", "model_state_dict", "model", "model_ema", "module", "net")
_PREFIXES = ("module.", "_orig_mod.", "model.")


def read_weights(path: str | Path) -> dict[str, Tensor]:
    """Read a state dict from a ``.safetensors`` file, or from a torch file that holds only tensors.

    Raises:
        WeightsError: The file is missing or damaged, or reading it could execute code.
    """
    path = Path(path)
    if not path.is_file():
        raise WeightsError(f"{path} is not a file: pass the path of a .safetensors, .pth, .pt or .bin file")
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            return dict(load_file(path))
        with path.open("rb") as file:
            magic = file.read(2)
        if magic not in (b"PK", b"\x80\x02"):  # a zip archive, or the pickle of older torch versions
            raise WeightsError(f"{path} cannot be read as weights: it is neither a safetensors nor a torch file")
        content = torch.load(path, map_location="cpu", weights_only=True)
    except WeightsError:
        raise
    except pickle.UnpicklingError as error:
        raise WeightsError(
            f"{path} holds objects other than tensors, and reading it could execute code: save the weights as "
            "safetensors, or with torch.save(model.state_dict(), …)"
        ) from error
    except Exception as error:
        raise WeightsError(f"{path} cannot be read as weights ({first_line(error)}): it may be damaged") from error
    return _state_dict_in(content, path)


def load_weights(model: nn.Module, weights: Mapping[str, Tensor], origin: str) -> None:
    """Load a state dict strictly, after removing prefixes that wrappers add to the parameter names.

    Args:
        model: The model, changed in place.
        weights: The state dict.
        origin: Name of the file in error messages.

    Raises:
        WeightsError: Keys are missing or unexpected, or shapes differ. The message names them.
    """
    expected = model.state_dict()
    weights = _strip_prefixes(weights, set(expected))
    missing = [k for k in expected if k not in weights]
    unexpected = [k for k in weights if k not in expected]
    shapes = [
        f"{k} {tuple(weights[k].shape)} instead of {tuple(expected[k].shape)}"
        for k in expected
        if k in weights and weights[k].shape != expected[k].shape
    ]
    if missing or unexpected or shapes:
        parts = [f"{len(keys)} {what}: {_shorten(keys)}" for what, keys in
                 (("missing", missing), ("unexpected", unexpected), ("wrong shape", shapes)) if keys]  # fmt: skip
        raise WeightsError(f"{origin} does not fit {type(model).__name__}: " + "; ".join(parts))
    model.load_state_dict(dict(weights))


def _strip_prefixes(weights: Mapping[str, Tensor], expected: set[str]) -> Mapping[str, Tensor]:
    """Remove common prefixes until a key matches the model's."""
    while not expected & set(weights):
        for prefix in _PREFIXES:
            if weights and all(k.startswith(prefix) for k in weights):
                weights = {k[len(prefix) :]: v for k, v in weights.items()}
                break
        else:
            return weights
    return weights


def _state_dict_in(content: object, path: Path) -> dict[str, Tensor]:
    """Find the state dict in a checkpoint, which may nest it under one of the usual keys."""
    while isinstance(content, Mapping):
        inner = next((content[key] for key in _WRAPPER_KEYS if isinstance(content.get(key), Mapping)), None)
        if inner is None:
            break
        content = inner
    if not isinstance(content, Mapping):
        raise WeightsError(f"{path} holds a {type(content).__name__}: expected a state dict")
    tensors = {str(k): v for k, v in content.items() if isinstance(v, Tensor)}
    if not tensors:
        raise WeightsError(f"{path} holds no tensors: expected a state dict")
    return tensors


def _shorten(keys: list[str]) -> str:
    return ", ".join(keys[:4]) + (f" and {len(keys) - 4} more" if len(keys) > 4 else "")


def first_line(error: Exception) -> str:
    """First line of an error's message, or the name of its type."""
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
