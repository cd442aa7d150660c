"""Write the files of a training run: weights, log and manifest."""

from __future__ import annotations

import importlib.metadata
import json
import platform
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn

from training import START_TIME
from training.recipe import Clock, Recipe, TrainingResult, TrainingTask
from training.runtime import logger
from vitrail.models.loading import EMBEDDED_KINDS


class RunWriter:
    """Writes weights, ``log.jsonl`` with one line per epoch, and ``manifest.json`` to a folder.

    Log lines and manifest entries of earlier runs in the folder are kept.
    """

    def __init__(self, folder: Path, options: Mapping[str, Any]) -> None:
        self.folder = folder
        self.options = {k: v.name if isinstance(v, Path) else v for k, v in options.items() if k != "out"}
        folder.mkdir(parents=True, exist_ok=True)

    def log_epoch(self, **record: Any) -> None:
        """Write one epoch to the log file and to stdout."""
        with (self.folder / "log.jsonl").open("a") as file:
            file.write(json.dumps(record) + "\n")
        accuracy = record["val_accuracy"]
        logger.info("%s epoch %d  %.0f%%  lr %.2e  loss %.4f  accuracy %s  %.2f s", record["model"], record["epoch"],
                    100 * record["progress"], record["lr"], record["train_loss"],
                    "-" if accuracy is None else f"{accuracy:.4f}", record["seconds"])  # fmt: skip

    def save_weights(self, name: str, model: nn.Module, metadata: Mapping[str, Any]) -> Path:
        """Save a model's weights in float16, with metadata as JSON.

        Raises:
            RuntimeError: A weight is not finite in float16.
        """
        state = {k: v.detach().to("cpu", torch.float16).contiguous() for k, v in model.state_dict().items()}
        not_finite = [k for k, v in state.items() if not torch.isfinite(v).all()]
        if not_finite:
            raise RuntimeError(f"{name}: not finite in float16: {', '.join(not_finite[:4])}")
        path = self.folder / f"{name}.safetensors"
        partial = path.with_suffix(".partial")  # replaced atomically, so that an interrupted run leaves a complete file
        save_file(state, partial, metadata={k: v if isinstance(v, str) else json.dumps(v) for k, v in metadata.items()})
        partial.chmod(0o644)
        partial.replace(path)
        return path

    def finish(self, task: TrainingTask, recipe: Recipe, result: TrainingResult, data: Mapping[str, Any], seed: int,
               evaluate: Callable[[Any], dict[str, float]], device: torch.device,
               load: Callable[[Path, torch.device], nn.Module] | None = None) -> dict[str, float]:  # fmt: skip
        """Save the weights, load them again, evaluate the loaded model, and add it to the manifest."""
        assert task.metadata is not None
        path = self.save_weights(task.name, task.model, task.metadata)
        accuracies = evaluate((load or load_saved)(path, device))
        entry = {
            "file": path.name, "bytes": path.stat().st_size, "dtype": "float16",
            "parameters": sum(p.numel() for p in task.model.parameters()),
            "architecture": task.metadata["architecture"], "accuracy": accuracies, "data": dict(data),
            "recipe": asdict(recipe), "seed": seed, "options": self.options,
            "epochs": result.epochs, "steps": result.steps, "train_loss": result.train_loss,
            "training_seconds": round(result.seconds, 1), "run_seconds": round(Clock.now() - START_TIME, 1),
            "compiled": result.compiled, "captured": result.captured, "device": device_name(device),
            "versions": versions(),
        }  # fmt: skip
        path_of_manifest = self.folder / "manifest.json"
        manifest = json.loads(path_of_manifest.read_text()) if path_of_manifest.is_file() else {"models": {}}
        manifest["models"][task.name] = entry
        path_of_manifest.write_text(json.dumps(manifest, indent=2) + "\n")
        summary = "  ".join(f"{k} {v:.4f}" for k, v in accuracies.items())
        logger.info("%s done: %s  (%d epochs, %.0f s, %d bytes)", task.name, summary, result.epochs, result.seconds,
                    entry["bytes"])  # fmt: skip
        return accuracies


def load_saved(path: Path, device: torch.device) -> nn.Module:
    """Load a model in float32 from its file alone."""
    with safe_open(path, "pt") as file:
        metadata = file.metadata()
    model = EMBEDDED_KINDS[metadata.get("kind", "classifier")](**json.loads(metadata["architecture"]))
    model.load_state_dict({k: v.float() for k, v in load_file(path).items()}, strict=True)
    return model.to(device).eval().requires_grad_(False)


def weights_metadata(
    architecture: Mapping[str, Any], classes: Iterable[str], mean: Sequence[float], std: Sequence[float], **more: Any
) -> dict[str, Any]:
    """Metadata of a weights file: all that is needed to use the model."""
    size = architecture["size"]
    preprocess = {"size": [size, size], "mean": list(mean), "std": list(std), "crop": 1.0}
    return {"format": "pt", "architecture": dict(architecture), "preprocess": preprocess, "classes": list(classes),
            **more}  # fmt: skip


def device_name(device: torch.device) -> str:
    """Name of the GPU or of the processor."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or "cpu"


def versions() -> dict[str, str | None]:
    """Versions of Python, CUDA and the packages used."""
    found: dict[str, str | None] = {"python": platform.python_version(), "cuda": torch.version.cuda}
    for package in ("torch", "numpy", "pillow", "safetensors", "vitrail"):
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = None
    return found
