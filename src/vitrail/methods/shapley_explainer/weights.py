"""Files of trained explainers: write one with its card, load one for a model, find those in the package."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from importlib.resources import files
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vitrail import fast
from vitrail.capture.model_structure import ModelStructure
from vitrail.errors import NotApplicableError, OptionError, WeightsError
from vitrail.methods.shapley_explainer.explainer_network import ShapleyExplainer
from vitrail.methods.shapley_explainer.surrogate import trainable_copy
from vitrail.methods.shapley_explainer.training_state import read_safetensors, write_safetensors
from vitrail.models.checkpoint import WeightsHash

FORMAT = "vitrail vit_shapley 1"
TRAIN = "train one with `vitrail train-explainer --model … --data … --out FILE` and pass vit_shapley:weights=FILE"


@dataclass(frozen=True)
class ExplainerRecord:
    """What a file states about its explainer.

    Attributes:
        model: Name of the explained model.
        model_hash: SHA-256 of its weights in single precision.
        classes: Number of classes.
        size: Height and width of the images.
        grid: Patches per column and per row.
        masking: How patches were removed in training.
        tokens_module: Submodule whose tokens the head reads.
        width: Width of these tokens.
        data: What it was trained on.
        settings: Steps, batch size, coalitions, learning rates and seed.
        losses: Mean loss of each interval of training, by phase.
        versions: Versions of the libraries.
    """

    model: str
    model_hash: str
    classes: int
    size: tuple[int, int]
    grid: tuple[int, int]
    masking: str
    tokens_module: str
    width: int
    data: str
    settings: Mapping[str, Any]
    losses: Mapping[str, list[float]]
    versions: Mapping[str, str]


@dataclass(frozen=True)
class TrainedExplainer:
    """An explainer ready for use.

    Attributes:
        module: The explainer, frozen, on the device of the model.
        empty: The surrogate's class probabilities without any patch, shape (classes,).
        record: What its file states.
    """

    module: ShapleyExplainer
    empty: Tensor
    record: ExplainerRecord


def float_hash(model: nn.Module) -> str:
    """SHA-256 of a model's weights in single precision, so that ``.half()`` or ``.double()`` do not change it."""
    digest = WeightsHash(model).hexdigest()
    if digest is None:
        raise WeightsError(f"the weights of {type(model).__name__} cannot be hashed: use a model with plain weights")
    tensors = [*model.parameters(), *model.buffers()]
    if all(t.dtype == torch.float32 for t in tensors if t.is_floating_point()):
        return digest
    known: str | None = fast.recall(model, "explainers", ("hash", digest))
    if known is None:
        copy = trainable_copy(model)  # a variable, because the hash does not keep its model alive
        known = fast.remember(model, "explainers", WeightsHash(copy).hexdigest() or "", ("hash", digest))
    assert known is not None
    return known


def write_explainer(path: Path, module: ShapleyExplainer, empty: Tensor, record: ExplainerRecord) -> None:
    """Write the trained parameters in half precision, and a card in Markdown beside them."""
    tensors = {name: p.detach().to("cpu", torch.float16).contiguous() for name, p in module.trained().items()}
    broken = [name for name, tensor in tensors.items() if not torch.isfinite(tensor).all()]
    if broken:
        raise WeightsError(f"training diverged: {broken[0]} is not finite; use a smaller learning rate")
    tensors["empty"] = empty.detach().float().cpu().contiguous()
    write_safetensors(path, tensors, {"format": FORMAT, **asdict(record)})
    path.with_suffix(".md").write_text(card(record, path), encoding="utf-8")


def read_record(path: Path, load: bool = True) -> tuple[dict[str, Tensor], ExplainerRecord]:
    """Read a file of `write_explainer`, its tensors only if ``load``."""
    tensors, metadata = read_safetensors(path, load)
    names = {entry.name for entry in fields(ExplainerRecord)}
    if metadata.pop("format", None) != FORMAT or metadata.keys() != names:
        raise WeightsError(f"{path} is not an explainer of vit_shapley: {TRAIN}")
    metadata["size"], metadata["grid"] = tuple(metadata["size"]), tuple(metadata["grid"])
    return tensors, ExplainerRecord(**metadata)


def packaged_explainers() -> Iterator[Path]:
    """Files of the explainers that are part of the package."""
    folder = files("vitrail.methods.shapley_explainer").joinpath("trained")
    if folder.is_dir():
        for entry in sorted(folder.iterdir(), key=lambda e: e.name):
            if entry.name.endswith(".safetensors"):
                yield Path(str(entry))


def find_explainer(model: nn.Module, weights: str = "") -> Path:
    """Find the file of a model's explainer: that of the package if ``weights`` is empty."""
    if not isinstance(weights, str | PathLike):
        raise OptionError(f"weights={weights!r} must be the path of a file that vitrail train-explainer wrote")
    digest = float_hash(model)
    if weights:
        path = Path(weights)
        record = read_record(path, load=False)[1]
        if record.model_hash != digest:
            raise WeightsError(
                f"{path} was trained for another model: {record.model}, weights {record.model_hash[:12]}…, and this "
                f"{type(model).__name__} has weights {digest[:12]}…; {TRAIN}"
            )
        return path
    known = []
    for path in packaged_explainers():
        record = read_record(path, load=False)[1]
        known.append(record.model)
        if record.model_hash == digest:
            return path
    have = f"it comes with one for {', '.join(known)} only" if known else "none comes with it"
    raise NotApplicableError(f"vit_shapley needs an explainer trained for this {type(model).__name__}, {have}: {TRAIN}")


def load_explainer(model: nn.Module, structure: ModelStructure, weights: str = "") -> TrainedExplainer:
    """Load the explainer of a model; the last one of each model is kept in memory.

    Args:
        model: The model to explain.
        structure: Its structure.
        weights: Path of the file; "" for one that is part of the package.
    """
    where = next(model.parameters())
    dtype = torch.promote_types(where.dtype, torch.float32)
    stamp = Path(weights).stat().st_mtime_ns if weights and Path(weights).is_file() else 0
    key = (WeightsHash(model).hexdigest(), weights, stamp, where.device, dtype)
    known: tuple[Any, TrainedExplainer] | None = fast.recall(model, "explainers", "loaded")
    if known is None or known[0] != key:
        path = find_explainer(model, weights)
        tensors, record = read_record(path)
        module = ShapleyExplainer(
            trainable_copy(model), record.tokens_module, structure.layout, record.width, record.classes,
            structure.tokens_first,
        )  # fmt: skip
        empty = tensors.pop("empty", None)
        parameters = dict(module.named_parameters())
        unfit = [name for name, t in tensors.items() if name not in parameters or parameters[name].shape != t.shape]
        if empty is None or unfit or any(name.startswith("head.") and name not in tensors for name in parameters):
            raise WeightsError(f"{path} is incomplete or damaged{f', at {unfit[0]}' if unfit else ''}: {TRAIN}")
        with torch.no_grad():
            for name, tensor in tensors.items():
                parameters[name].copy_(tensor)
        module.to(where.device, dtype).requires_grad_(False).eval()
        explainer = TrainedExplainer(module, empty.to(where.device, dtype), record)
        known = fast.remember(model, "explainers", (key, explainer), "loaded")
    assert known is not None
    return known[1]


def card(record: ExplainerRecord, path: Path) -> str:
    """The card of an explainer in Markdown."""
    rows = {
        "explained model": record.model,
        "SHA-256 of its weights": f"`{record.model_hash}`",
        "classes": record.classes,
        "images": f"{record.size[0]}×{record.size[1]} pixels, {record.grid[0]}×{record.grid[1]} patches",
        "removed patches": record.masking,
        "data": record.data,
        **{name.replace("_", " "): value for name, value in record.settings.items()},
        **{f"{phase} loss, first and last interval ↓": _ends(losses) for phase, losses in record.losses.items()},
        "versions": ", ".join(f"{name} {version}" for name, version in record.versions.items()),
    }
    lines = [f"| {name} | {value} |" for name, value in rows.items()]
    return "\n".join([
        f"# Explainer: {path.name}", "",
        "Predicts Shapley values of patches for every class of one model, with one forward pass (`vit_shapley`). It",
        "works with this model only. Losses: KL divergence of the surrogate, squared error of the explainer.", "",
        "| | |", "|---|---|", *lines, "",
    ])  # fmt: skip


def _ends(losses: list[float]) -> str:
    return f"{losses[0]:.5f}, {losses[-1]:.5f}" if losses else "not trained"
