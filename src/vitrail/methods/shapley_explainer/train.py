"""Train a surrogate and an explainer for a model; a run that was interrupted continues where it stopped."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vitrail import fast
from vitrail.capture.frozen import frozen, unwrap
from vitrail.errors import DataError, ModelError, OptionError
from vitrail.methods.shapley_explainer.explainer_network import ShapleyExplainer, build_explainer, explainer_loss
from vitrail.methods.shapley_explainer.partial_images import PATCH_REMOVALS, PartialImages
from vitrail.methods.shapley_explainer.surrogate import surrogate_loss, trainable_copy
from vitrail.methods.shapley_explainer.training_images import TrainingImages
from vitrail.methods.shapley_explainer.training_state import (
    PHASES,
    TrainingState,
    gather,
    read_state,
    restore,
    write_state,
)
from vitrail.methods.shapley_explainer.weights import ExplainerRecord, float_hash, write_explainer
from vitrail.models import LoadedModel


@dataclass(frozen=True)
class TrainingSettings:
    """Settings of a run. Memory grows with ``batch`` only.

    Attributes:
        surrogate_steps: Steps of the surrogate.
        explainer_steps: Steps of the explainer.
        batch: Images in a step, and in a forward pass.
        groups: Coalition sizes in a step of the surrogate.
        pairs: Coalitions of each image in a step of the explainer, each with its complement.
        surrogate_lr: Peak learning rate of the surrogate.
        explainer_lr: Peak learning rate of the explainer.
        seed: Seed of order, coalitions and initial weights.
        removal: "tokens", "fill" or "auto", see `PartialImages`.
    """

    surrogate_steps: int = 2000
    explainer_steps: int = 4000
    batch: int = 32
    groups: int = 4
    pairs: int = 8
    surrogate_lr: float = 1e-4
    explainer_lr: float = 3e-4
    seed: int = 0
    removal: str = "auto"

    def __post_init__(self) -> None:
        for name in ("surrogate_steps", "explainer_steps", "batch", "groups", "pairs"):
            if getattr(self, name) < 1:
                raise OptionError(f"{name}={getattr(self, name)} must be at least 1")
        for name in ("surrogate_lr", "explainer_lr"):
            if not 0 < getattr(self, name) < math.inf:
                raise OptionError(f"{name}={getattr(self, name)} must be a positive number")


@dataclass(frozen=True)
class TrainedRun:
    """Result of `train_explainer`.

    Attributes:
        surrogate: The surrogate.
        explainer: The explainer, before rounding to half precision.
        partial_images: Predictions for images with some patches kept.
        empty: The surrogate's class probabilities without any patch, shape (classes,).
        record: What the file states.
    """

    surrogate: nn.Module
    explainer: ShapleyExplainer
    partial_images: PartialImages
    empty: Tensor
    record: ExplainerRecord


#: Called after each step with the phase, the steps done in it and the loss.
Advance = Callable[[str, int, float], None]


def train_explainer(
    loaded: LoadedModel,
    images: TrainingImages,
    path: Path,
    settings: TrainingSettings | None = None,
    *,
    checkpoint_steps: int = 200,
    advance: Advance = lambda *_: None,
) -> TrainedRun:
    """Train an explainer and write it with its card.

    A checkpoint ``NAME.checkpoint`` beside the file is written after every ``checkpoint_steps`` steps, read if it
    exists, and removed at the end. A continued run gives the weights of an uninterrupted one.

    Args:
        loaded: The model to explain; it is not changed.
        images: The images to train on; labels are not used.
        path: The safetensors file to write.
        settings: Settings of the run.
        checkpoint_steps: Steps between checkpoints.
        advance: Called after each step, for progress.

    Raises:
        DataError: The images cannot be read.
        NotApplicableError: The model has no attention between all patches of a grid.
        WeightsError: The checkpoint is damaged or of another run.
    """
    settings = settings or TrainingSettings()
    if path.suffix != ".safetensors":
        raise OptionError(f"{path.name!r} must be a safetensors file: end its name in .safetensors")
    model = unwrap(loaded.module)
    with fast.unchanged(model), frozen(model), fast.onednn_enabled():  # a continued run is often in another process
        return _Trainer(model, loaded, images, path, settings, checkpoint_steps, advance).run()


class _Trainer:
    """One run."""

    def __init__(
        self,
        model: nn.Module,
        loaded: LoadedModel,
        images: TrainingImages,
        path: Path,
        settings: TrainingSettings,
        checkpoint_steps: int,
        advance: Advance,
    ) -> None:
        self.model, self.loaded, self.images, self.path = model, loaded, images, path
        self.settings, self.checkpoint_steps, self.advance = settings, checkpoint_steps, advance
        self.device = next(model.parameters()).device
        self.reference = trainable_copy(model).requires_grad_(False)
        first = self._batch(0)
        self.partial_images = PartialImages(self.reference, first, settings.removal)
        self.classes = self.partial_images.classes_of(self.reference, first[:1])
        if loaded.classes is not None and len(loaded.classes) != self.classes:
            raise ModelError(
                f"{loaded.name} has {len(loaded.classes)} class names and {self.classes} outputs: pass the names of "
                "its classes"
            )
        self.size = (int(first.shape[2]), int(first.shape[3]))
        self.checkpoint = path.with_suffix(".checkpoint")
        self.identity: dict[str, Any] = {
            "settings": asdict(settings), "data": images.description, "images": images.count,
            "model_hash": float_hash(model), "removal": self.partial_images.removal, "intervals": checkpoint_steps,
        }  # fmt: skip

    def run(self) -> TrainedRun:
        """Train both modules and write the result."""
        state = read_state(self.checkpoint, self.identity) or TrainingState()
        settings = self.settings
        surrogate = trainable_copy(self.model)
        if state.phase == 0:
            self._optimise(
                surrogate, state, settings.surrogate_steps, settings.surrogate_lr,
                lambda batch, generator: surrogate_loss(
                    self.partial_images, self.reference, surrogate, batch, settings.groups, generator
                ),
            )  # fmt: skip
            state.phase, state.step, state.tensors = 1, 0, gather("surrogate", surrogate)
        else:
            restore("surrogate", surrogate, state.tensors)
        surrogate.requires_grad_(False)
        first = self._batch(0)
        empty = self.partial_images.empty(surrogate, first)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(settings.seed)
            backbone = trainable_copy(surrogate)
            explainer = build_explainer(backbone, self.partial_images.structure, first, self.classes)
        kept = gather("surrogate", surrogate)
        self._optimise(
            explainer, state, settings.explainer_steps, settings.explainer_lr,
            lambda batch, generator: explainer_loss(
                self.partial_images, surrogate, explainer, batch, empty, settings.pairs, generator
            ),
            kept,
        )  # fmt: skip
        record = self._record(state, explainer)
        write_explainer(self.path, explainer, empty, record)
        self.checkpoint.unlink(missing_ok=True)
        return TrainedRun(surrogate, explainer, self.partial_images, empty, record)

    def _optimise(
        self,
        module: nn.Module,
        state: TrainingState,
        steps: int,
        lr: float,
        loss_of: Callable[[Tensor, torch.Generator], Tensor],
        kept: dict[str, Tensor] | None = None,
    ) -> None:
        """Train a module from the step of the state on, with a checkpoint after each interval."""
        phase = PHASES[state.phase]
        parameters = [p for p in module.parameters() if p.requires_grad]
        optimiser = torch.optim.AdamW(parameters, lr=lr, weight_decay=0.01)
        if state.step:
            restore(phase, module, state.tensors, optimiser)
        total, count = torch.zeros((), device=self.device), 0
        for step in range(state.step, steps):
            optimiser.param_groups[0]["lr"] = lr * schedule(step / steps)
            generator = torch.Generator(self.device)
            generator.manual_seed((self.settings.seed << 32) + (state.phase << 31) + step)
            with torch.enable_grad():
                loss = loss_of(self._batch(step), generator)
                loss.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(parameters, 1.0)
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
            total, count = total + loss.detach(), count + 1
            last = step + 1 == steps
            if (step + 1) % self.checkpoint_steps == 0 or last:
                mean = float(total) / count
                if not math.isfinite(mean):
                    raise ModelError(
                        f"training of the {phase} diverged at step {step + 1}: use a smaller learning rate"
                    )
                state.losses[phase].append(mean)
                total, count = torch.zeros((), device=self.device), 0
                state.step = step + 1
                state.tensors = {**(kept or {}), **gather(phase, module, optimiser)}
                write_state(self.checkpoint, state, self.identity)
            self.advance(phase, step + 1, state.losses[phase][-1] if state.losses[phase] else math.nan)

    def _batch(self, step: int) -> Tensor:
        try:
            batch = self.images.batch(self.settings.batch, step, self.settings.seed)
        except (OSError, RuntimeError, ValueError) as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise DataError(f"the training images cannot be read: {reason}") from error
        return batch.to(self.device, torch.float32)

    def _record(self, state: TrainingState, explainer: ShapleyExplainer) -> ExplainerRecord:
        settings = {name: value for name, value in asdict(self.settings).items() if name != "removal"}
        return ExplainerRecord(
            self.loaded.name, self.identity["model_hash"], self.classes, self.size, self.partial_images.grid,
            PATCH_REMOVALS[self.partial_images.removal], explainer.tokens_module,
            explainer.head.norm.normalized_shape[0], self.images.description, settings, state.losses, _versions(),
        )  # fmt: skip


def _versions() -> dict[str, str]:
    versions = {"torch": str(torch.__version__)}
    try:
        return {**versions, "vitrail": version("vitrail")}
    except PackageNotFoundError:  # run from a checkout
        return versions


def schedule(progress: float, warmup: float = 0.05) -> float:
    """Learning rate as a fraction of its peak: linear warm-up, then cosine decay to 1 %.

    Example:
        >>> round(schedule(0.025), 3), round(schedule(0.05), 3), round(schedule(1.0), 3)
        (0.505, 1.0, 0.01)
    """
    if progress < warmup:
        return 0.01 + 0.99 * progress / warmup
    return 0.01 + 0.99 * (1 + math.cos(math.pi * (progress - warmup) / (1 - warmup))) / 2
