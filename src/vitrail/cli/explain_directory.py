"""``vitrail explain`` for a folder of images."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer
from rich.markup import escape

from vitrail.cli.bench import require_bench, warn_shared_gpu
from vitrail.cli.common import err, model_sentence, out


def explain_directory(
    directory: str,
    to: Path,
    *,
    recursive: bool,
    column: str,
    split: str,
    overlays: bool,
    model: str,
    weights: str,
    methods: list[str],
    target: list[str] | None,
    scores: str | None,
    original: bool,
    engine: str,
    workers: int | None,
    device: str,
    address: str | None,
    imports: list[str],
    row: list[list[Any]] | None = None,
) -> None:
    """Explain every image of a folder or another source, draw overlays and write an HTML index; count failed images.

    Raises:
        typer.Exit: With status 1 if an image failed.
    """
    require_bench()
    from vitrail.bench.engines.local import LocalEngine
    from vitrail.bench.folder import explain_folder
    from vitrail.bench.folder_overlays import draw_folder
    from vitrail.bench.folder_page import summarise_folder, write_folder_page
    from vitrail.bench.run import make_engine
    from vitrail.bench.run_progress import show_progress

    runner = make_engine(engine, workers, device, 1, address)
    warn_shared_gpu(runner)
    classes: Any = row  # prompts and boxes, the same for all images
    if target:  # several classes are one row, the same for all images; "topN" stands alone
        classes = target[0] if len(target) == 1 and target[0].startswith("top") else [target]
    own_device = "cuda:0" if device == "cuda" else device

    def name_replaced(images: Sequence[str]) -> None:
        count, shown = len(images), ", ".join(images[:5]) + (", …" if len(images) > 5 else "")
        was = "image was replaced since it was explained, and is" if count == 1 else (
            "images were replaced since they were explained, and are"
        )  # fmt: skip
        part = "its part" if count == 1 else "their parts"
        err.print(f"{count} {was} explained again with {part}: {escape(shown)}", highlight=False, soft_wrap=True)

    with show_progress(err) as progress:
        index = explain_folder(
            directory, to, recursive=recursive, column=column, split=split, model=model,
            weights=None if weights == "pretrained" else weights, methods=methods, target=classes, scores=scores,
            device=own_device, engine=runner, imports=imports, begin=progress.begin, done=progress.done,
            replaced=name_replaced,
        )  # fmt: skip
    sentence = model_sentence(model, weights)
    if overlays:
        with show_progress(err, "Overlays") as progress:
            draw_folder(  # here, where the maps are
                to, original=original, device=own_device, engine=runner if isinstance(runner, LocalEngine) else None,
                begin=progress.begin, done=progress.done,
            )  # fmt: skip
        summary = write_folder_page(to, (sentence,))
    else:
        summary = summarise_folder(to)
    out.print(sentence, highlight=False, soft_wrap=True)
    out.print(f"Table of all maps: [bold]{escape(str(index))}[/bold]", soft_wrap=True)
    failed = len(summary.failures)
    for name, reason in list(summary.failures.items())[:5]:
        err.print(f"[red]failed:[/red] {escape(name)}: {escape(reason)}", highlight=False, soft_wrap=True)
    if failed > 5:
        err.print(f"[red]failed:[/red] {failed - 5} more, listed in the results", highlight=False)
    counts = f"{summary.images - failed} of {summary.images} images explained, {failed} failed"
    out.print(f"{counts}: [bold]{escape(str(summary.page))}[/bold]", highlight=False, soft_wrap=True)
    if failed:
        raise typer.Exit(1)
