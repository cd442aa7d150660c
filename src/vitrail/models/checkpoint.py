"""Read weights from files without executing code, and load them into a model."""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from weakref import ref

import torch
from torch import Tensor, nn

from vitrail import fast
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
    weights = strip_prefixes(weights, set(expected))
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


def fit_classes(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Give a timm model as many classes as the head in a file has."""
    heads = [v for k, v in weights.items() if v.dim() == 2 and k.rpartition("head.")[2] in ("weight", "fc.weight")]
    reset: Any = getattr(model, "reset_classifier", None)
    if len(heads) == 1 and reset is not None and heads[0].shape[0] != getattr(model, "num_classes", None):
        reset(int(heads[0].shape[0]))


def strip_prefixes(weights: Mapping[str, Tensor], expected: set[str]) -> Mapping[str, Tensor]:
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


class WeightsHash:
    """SHA-256 of a model's parameters and buffers: names, shapes, types and bytes.

    It is computed at first use and cached for each model. The model is not kept alive. The hash is None if the model
    no longer exists, if its weights were changed after this object was created, or if they have no plain bytes.
    Changes are seen by a sample of each tensor's values, so that writes through ``.data`` count as well.

    Example:
        >>> model = nn.Linear(2, 2)
        >>> len(WeightsHash(model).hexdigest())
        64
    """

    def __init__(self, model: nn.Module) -> None:
        self._model: ref[nn.Module] | None = ref(model)
        self._state = fast.weights_state(model)
        self._sample = fast.call_cache("weights sample", model, _sample)
        self._digest: str | None = None

    def hexdigest(self) -> str | None:
        """The hash in hexadecimal digits, or None if it cannot be computed any more."""
        model = None if self._model is None else self._model()
        if self._digest is None and model is not None and self._is_unchanged(model):
            known: tuple[Any, Tensor, str] | None = fast.recall(model, "weights hash")
            if known is None or known[0] != self._state or not known[1].equal(self._sample):
                try:
                    known = (self._state, self._sample, _sha256(model))
                except (RuntimeError, TypeError):  # tensors without plain bytes, such as quantised ones
                    return None
                fast.remember(model, "weights hash", known)
            self._digest = known[2]
        return self._digest

    def _is_unchanged(self, model: nn.Module) -> bool:
        return fast.weights_state(model) == self._state and _sample(model).equal(self._sample)

    def __getstate__(self) -> dict[str, Any]:
        return {"_model": None, "_state": None, "_sample": None, "_digest": self.hexdigest()}


#: Values of each tensor on the CPU that are compared to see whether it was changed.
_SAMPLES = 16


def _sample(model: nn.Module) -> Tensor:
    """Some numbers that change with the weights, on their device, shape (numbers,).

    On a GPU some bytes, or the norm, of each tensor, by one kernel for all; on the CPU values at equal distances, which
    are faster.
    """
    found = fast.sample_weights(model)
    if found is not None:
        return found
    tensors = [t for t in fast.weights_of(model) if t.is_floating_point() and t.numel() and not t.is_meta]
    try:
        if tensors and all(t.is_cuda for t in tensors):
            with torch.no_grad():
                norms = torch._foreach_norm(tensors)  # noqa: SLF001
                alike = len({norm.dtype for norm in norms}) == 1
                return torch.stack(norms if alike else [norm.float() for norm in norms]).float()
        with torch.no_grad():
            picked = [_spaced(t) for t in tensors if not t.is_sparse]
            if len({one.dtype for one in picked}) > 1:
                picked = [one.float() for one in picked]
            return torch.cat(picked).float().nan_to_num_() if picked else torch.zeros(0)
    except (RuntimeError, NotImplementedError):  # tensors of a kind that has no such values
        return torch.zeros(0)


def _spaced(t: Tensor) -> Tensor:
    """Values of a tensor at equal distances, in one step where they lie in a row."""
    step = max(1, t.numel() // _SAMPLES)
    if t.is_contiguous():
        return t.as_strided((-(-t.numel() // step),), (step,))
    return t.reshape(-1)[::step]


def _tensors_of(model: nn.Module) -> dict[str, Tensor]:
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def _sha256(model: nn.Module) -> str:
    digest = hashlib.sha256()
    for name, tensor in sorted(_tensors_of(model).items()):
        digest.update(f"{name}\0{tuple(tensor.shape)}\0{tensor.dtype}\0".encode())
        values = tensor.detach().cpu().contiguous()
        digest.update(values.reshape(-1).view(torch.uint8).numpy().tobytes() if values.numel() else b"")
    return digest.hexdigest()
