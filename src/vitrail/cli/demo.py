"""``vitrail demo``."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from vitrail.cli.common import err, out, progress_bar


def demo(
    to: Annotated[Path, typer.Option("--out", "-o", metavar="DIR", help="Folder for the results.")] = Path("out/demo"),
) -> None:
    """Explain four embedded scenes with all methods.

    Writes one figure and one HTML page. Needs no image and no network, and takes a minute or two.
    """
    run_demo(to, None, "scenes")


def run_demo(to: Path, methods: list[str] | None, model: str) -> None:
    """Explain the demo scenes and print the paths of the files; None stands for all methods."""
    from vitrail.tools.demo import DEMO_SCENES, explain_demo_scenes, write_demo

    if find_spec("matplotlib") is None:  # found out before, not after, minutes of work
        err.print(
            "[yellow]note:[/yellow] matplotlib is not installed, so only the page is written, without figure.png: "
            'pip install "vitrail\\[plot]"',
            soft_wrap=True,
        )
    with progress_bar("Explaining scenes", len(DEMO_SCENES)) as advance:
        scenes = explain_demo_scenes(methods, model, advance)
    image, page = write_demo(scenes, to)
    figure = f"Figure: [bold]{image}[/bold]\n" if image is not None else ""
    out.print(f"{figure}Page:   [bold]{page}[/bold]", soft_wrap=True)
