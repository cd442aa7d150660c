"""The state of an interrupted training run: weights, moments of the optimiser and progress in one safetensors file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vitrail.errors import WeightsError, writing

#: The two phases of training, in order.
PHASES = ("surrogate", "explainer")
_MOMENTS = ("exp_avg", "exp_avg_sq", "step")


@dataclass
class TrainingState:
    """What is needed to continue a run.

    Random numbers depend on the seed and the step alone, so none are stored.

    Attributes:
        phase: Index into ``PHASES``.
        step: Steps done in this phase.
        losses: Mean loss of each interval between two checkpoints, by phase.
        tensors: Weights and moments, by name.
    """

    phase: int = 0
    step: int = 0
    losses: dict[str, list[float]] = field(default_factory=lambda: {phase: [] for phase in PHASES})
    tensors: dict[str, Tensor] = field(default_factory=dict)


def write_state(path: Path, state: TrainingState, run: Mapping[str, Any]) -> None:
    """Write the state; the previous file is replaced only by a complete one."""
    progress = {"phase": state.phase, "step": state.step, "losses": state.losses}
    write_safetensors(path, state.tensors, {"run": dict(run), "progress": progress})


def read_state(path: Path, run: Mapping[str, Any]) -> TrainingState | None:
    """Read the state of the same run, or None if there is none.

    Raises:
        WeightsError: The file is damaged, or belongs to a run with other settings, data or weights.
    """
    if not path.exists():
        return None
    tensors, metadata = read_safetensors(path)
    if "progress" not in metadata or "run" not in metadata:
        raise WeightsError(f"{path} is not a checkpoint of this training: remove it or choose another --out")
    stored = metadata["run"]
    different = [key for key in {**stored, **run} if stored.get(key) != json.loads(json.dumps(run.get(key)))]
    if different:
        key = different[0]
        raise WeightsError(
            f"{path} is a checkpoint of another run ({key}: {stored.get(key)} instead of {run.get(key)}): repeat that "
            "run's settings to continue it, remove the file to start again, or choose another --out"
        )
    progress = metadata["progress"]
    return TrainingState(progress["phase"], progress["step"], progress["losses"], tensors)


def gather(prefix: str, module: nn.Module, optimiser: torch.optim.Optimizer | None = None) -> dict[str, Tensor]:
    """Parameters of a module, and the optimiser's moments of each, by name."""
    tensors = {}
    for name, parameter in module.named_parameters():
        tensors[f"{prefix}.{name}"] = parameter.detach().cpu().contiguous()
        moments = optimiser.state.get(parameter, {}) if optimiser is not None else {}
        for moment in _MOMENTS:
            if moment in moments:
                tensors[f"{moment}.{prefix}.{name}"] = moments[moment].detach().cpu().contiguous()
    return tensors


def restore(
    prefix: str, module: nn.Module, tensors: Mapping[str, Tensor], optimiser: torch.optim.Optimizer | None = None
) -> None:
    """Load what `gather` stored."""
    for name, parameter in module.named_parameters():
        stored = tensors.get(f"{prefix}.{name}")
        if stored is None or stored.shape != parameter.shape:
            raise WeightsError(f"the checkpoint does not fit the model at {prefix}.{name}: remove it to start again")
        with torch.no_grad():
            parameter.copy_(stored)
        if optimiser is not None and f"step.{prefix}.{name}" in tensors:
            moments = {moment: tensors[f"{moment}.{prefix}.{name}"] for moment in _MOMENTS}
            optimiser.state[parameter] = {
                moment: value.clone() if moment == "step" else value.to(parameter.device, copy=True)
                for moment, value in moments.items()
            }


def write_safetensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, Any]) -> None:
    """Write tensors with metadata as JSON; an existing file is replaced only by a complete one."""
    from safetensors.torch import save_file

    partial = path.with_name(f"{path.name}.partial")
    with writing(path, "choose another --out"):
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file(dict(tensors), partial, metadata={key: json.dumps(value) for key, value in metadata.items()})
        partial.chmod(0o644)
        partial.replace(path)


def read_safetensors(path: Path, load: bool = True) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read the tensors of a file, none unless ``load``, and its metadata."""
    from safetensors import safe_open

    if not path.is_file():
        raise WeightsError(f"{path} is not a file: pass the .safetensors file that vitrail train-explainer wrote")
    try:
        with safe_open(str(path), framework="pt") as file:
            metadata = {key: json.loads(value) for key, value in (file.metadata() or {}).items()}
            return {key: file.get_tensor(key) for key in (file.keys() if load else ())}, metadata
    except Exception as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise WeightsError(f"{path} cannot be read as safetensors ({reason}): it may be damaged") from error
