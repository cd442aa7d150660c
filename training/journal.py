"""What a run leaves behind: weights, log and manifest."""

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

from training import STARTED
from training.loop import Task, Trained
from training.schedule import Clock, Recipe
from training.start import logger
from vitrail.models.plain_vit import PlainViT


class Journal:
    """A folder with weights, one line of ``log.jsonl`` per epoch, and ``manifest.json``.

    Lines and entries of models that an earlier run left in the folder are kept.
    """

    def __init__(self, out: Path, options: Mapping[str, Any]) -> None:
        self.out = out
        self.options = {k: v.name if isinstance(v, Path) else v for k, v in options.items() if k != "out"}
        out.mkdir(parents=True, exist_ok=True)

    def epoch(self, **record: Any) -> None:
        """Write one epoch to the log file and to stdout."""
        with (self.out / "log.jsonl").open("a") as file:
            file.write(json.dumps(record) + "\n")
        accuracy = record["val_accuracy"]
        logger.info("%s epoch %d  %.0f%%  lr %.2e  loss %.4f  accuracy %s  %.2f s", record["model"], record["epoch"],
                    100 * record["progress"], record["lr"], record["train_loss"],
                    "-" if accuracy is None else f"{accuracy:.4f}", record["seconds"])  # fmt: skip

    def weights(self, name: str, model: nn.Module, about: Mapping[str, Any]) -> Path:
        """Write a model's weights in float16, with what is needed to use them as JSON beside them.

        Raises:
            RuntimeError: A weight does not fit into float16.
        """
        state = {k: v.detach().to("cpu", torch.float16).contiguous() for k, v in model.state_dict().items()}
        broken = [k for k, v in state.items() if not torch.isfinite(v).all()]
        if broken:
            raise RuntimeError(f"{name}: not finite in float16: {', '.join(broken[:4])}")
        path = self.out / f"{name}.safetensors"
        beside = path.with_suffix(".partial")  # a run cut short in the middle of writing leaves the last whole file
        save_file(state, beside, metadata={k: v if isinstance(v, str) else json.dumps(v) for k, v in about.items()})
        beside.chmod(0o644)
        beside.replace(path)
        return path

    def finish(self, task: Task, recipe: Recipe, trained: Trained, data: Mapping[str, Any], seed: int,
               measure: Callable[[PlainViT], dict[str, float]], device: torch.device) -> dict[str, float]:  # fmt: skip
        """Write the weights, read them back, measure what was read, and enter it in the manifest."""
        assert task.about is not None
        path = self.weights(task.name, task.model, task.about)
        accuracies = measure(load_back(path, device))
        entry = {
            "file": path.name, "bytes": path.stat().st_size, "dtype": "float16",
            "parameters": sum(p.numel() for p in task.model.parameters()),
            "architecture": task.about["architecture"], "accuracy": accuracies, "data": dict(data),
            "recipe": asdict(recipe), "seed": seed, "options": self.options,
            "epochs": trained.epochs, "steps": trained.steps, "train_loss": trained.train_loss,
            "training_seconds": round(trained.seconds, 1), "run_seconds": round(Clock.now() - STARTED, 1),
            "compiled": trained.compiled, "captured": trained.captured, "device": device_name(device),
            "versions": versions(),
        }  # fmt: skip
        manifest = self.out / "manifest.json"
        whole = json.loads(manifest.read_text()) if manifest.is_file() else {"models": {}}
        whole["models"][task.name] = entry
        manifest.write_text(json.dumps(whole, indent=2) + "\n")
        shown = "  ".join(f"{k} {v:.4f}" for k, v in accuracies.items())
        logger.info("%s done: %s  (%d epochs, %.0f s, %d bytes)", task.name, shown, trained.epochs, trained.seconds,
                    entry["bytes"])  # fmt: skip
        return accuracies


def load_back(path: Path, device: torch.device) -> PlainViT:
    """The model in a file, made from nothing but that file, in float32."""
    with safe_open(path, "pt") as file:
        architecture = json.loads(file.metadata()["architecture"])
    model = PlainViT(**architecture)
    model.load_state_dict({k: v.float() for k, v in load_file(path).items()}, strict=True)
    return model.to(device).eval().requires_grad_(False)


def describe(architecture: Mapping[str, Any], classes: Iterable[str], mean: Sequence[float], std: Sequence[float],
             **more: Any) -> dict[str, Any]:  # fmt: skip
    """What is stored beside the weights."""
    size = architecture["size"]
    preprocess = {"size": [size, size], "mean": list(mean), "std": list(std), "crop": 1.0}
    return {"format": "pt", "architecture": dict(architecture), "preprocess": preprocess, "classes": list(classes),
            **more}  # fmt: skip


def device_name(device: torch.device) -> str:
    """The GPU, or what stands in for it."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or "cpu"


def versions() -> dict[str, str | None]:
    """Versions of what the run was made with."""
    found: dict[str, str | None] = {"python": platform.python_version(), "cuda": torch.version.cuda}
    for package in ("torch", "numpy", "pillow", "safetensors", "vitrail"):
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = None
    return found
