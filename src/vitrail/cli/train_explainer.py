"""``vitrail train-explainer``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import isnan
from pathlib import Path
from typing import Annotated

import typer

from vitrail.cli.common import DeviceOption, ModelOption, WeightsOption, err, load_model, out, require_output
from vitrail.errors import ModelError, OptionError


def train_explainer(
    data: Annotated[
        str,
        typer.Option(
            "--data",
            metavar="DIR|scenes|NAME=PATH",
            help="Images to train on: a folder, searched with its subfolders; the embedded scenes; or a data set by "
            "name, such as cifar10=PATH. Labels are not used.",
        ),
    ],
    to: Annotated[
        Path,
        typer.Option("--out", "-o", metavar="FILE", help="The .safetensors file; a card, .md, is written beside it."),
    ],
    model: ModelOption = "scenes",
    weights: WeightsOption = "pretrained",
    surrogate_steps: Annotated[int, typer.Option(help="Steps of the surrogate.")] = 2000,
    explainer_steps: Annotated[int, typer.Option(help="Steps of the explainer.")] = 4000,
    batch: Annotated[int, typer.Option("--batch", help="Images in a step; memory grows with it.")] = 32,
    pairs: Annotated[
        int, typer.Option(help="Coalitions of each image in a step of the explainer, each with its complement.")
    ] = 8,
    surrogate_lr: Annotated[float, typer.Option(help="Peak learning rate of the surrogate.")] = 1e-4,
    explainer_lr: Annotated[float, typer.Option(help="Peak learning rate of the explainer.")] = 3e-4,
    removal: Annotated[
        str,
        typer.Option(help="How patches are removed: tokens (dropped), fill (mean colour), auto (tokens if possible)."),
    ] = "auto",
    limit: Annotated[int | None, typer.Option(help="Use only so many images.", show_default=False)] = None,
    seed: Annotated[int, typer.Option(help="Seed of order, coalitions and initial weights.")] = 0,
    checkpoint: Annotated[int, typer.Option("--checkpoint", help="Steps between checkpoints.")] = 200,
    device: DeviceOption = "cpu",
) -> None:
    """Train an explainer for the method vit_shapley.

    It predicts Shapley values of patches with one forward pass. First a copy of the model, the surrogate, is fine-tuned
    to predict from some patches what the model predicts from all. Then the explainer is trained on the surrogate's
    predictions. Use it with `--method vit_shapley:weights=FILE`.

    An interrupted run continues from its last checkpoint when the command is repeated.

    For example: `vitrail train-explainer -m timm:vit_tiny_patch16_224 --data photos -o tiny.safetensors --device cuda`
    """
    from vitrail.methods.shapley_explainer import TrainingSettings, open_training_images
    from vitrail.methods.shapley_explainer import train_explainer as train

    settings = TrainingSettings(
        surrogate_steps, explainer_steps, batch, min(4, batch), pairs, surrogate_lr, explainer_lr, seed, removal
    )
    if checkpoint < 1:
        raise OptionError(f"--checkpoint {checkpoint} must be at least 1")
    require_output(to, folder=False)
    require_output(to.parent)  # for checkpoints and the card
    loaded = load_model(model, weights, device)
    if loaded.preprocess is None:
        raise ModelError(f"the preprocessing of {model} is unknown: train from Python with TrainingImages")
    images = open_training_images(data, loaded.preprocess, limit)
    out.print(f"Training on {images.description}", soft_wrap=True)
    with _phase_bars(settings.surrogate_steps, settings.explainer_steps) as advance:
        run = train(loaded, images, to, settings, checkpoint_steps=checkpoint, advance=advance)
    ends = {phase: losses[-1] for phase, losses in run.record.losses.items()}
    out.print(f"Loss of the surrogate {ends['surrogate']:.5f}, of the explainer {ends['explainer']:.5f}")
    out.print(f"Explainer: [bold]{to}[/bold], card: [bold]{to.with_suffix('.md')}[/bold]", soft_wrap=True)
    out.print(f"Use it with: vitrail explain IMAGE -m {model} --method vit_shapley:weights={to}", soft_wrap=True)


@contextmanager
def _phase_bars(surrogate_steps: int, explainer_steps: int) -> Iterator[Callable[[str, int, float], None]]:
    """Show a progress bar for each phase on standard error; yields the function that `train` calls after each step."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[loss]}"),
        TimeRemainingColumn(),
    )  # fmt: skip
    with Progress(*columns, console=err, transient=True) as progress:
        steps = {"surrogate": surrogate_steps, "explainer": explainer_steps}
        tasks = {phase: progress.add_task(phase.capitalize(), total=n, loss="") for phase, n in steps.items()}

        def advance(phase: str, step: int, loss: float) -> None:
            shown = "" if isnan(loss) else f"loss {loss:.5f}"
            if phase == "explainer":  # also in a run that continues after the surrogate
                progress.update(tasks["surrogate"], completed=surrogate_steps)
            progress.update(tasks[phase], completed=step, loss=shown)

        yield advance
