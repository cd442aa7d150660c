"""``vitrail demo``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from vitrail.cli.common import err, out, progress_bar, require_output


def demo(
    to: Annotated[Path, typer.Option("--out", "-o", metavar="DIR", help="Folder for the results.")] = Path("out/demo"),
    every: Annotated[
        bool, typer.Option("--all", help="Also run the methods that evaluate many images; takes several minutes.")
    ] = False,
) -> None:
    """Explain four embedded scenes with many methods.

    Writes one figure and one HTML page. Needs no image and no network, and takes about a minute.
    """
    from vitrail.tools.demo import demo_methods

    require_output(to)
    methods, expensive = demo_methods("scenes", every)
    run_demo(to, methods, "scenes")
    if expensive:
        out.print(
            f"{len(methods)} methods. Left out, since they evaluate many images: {', '.join(expensive)}. "
            "`vitrail demo --all` runs them too.",
            highlight=False,
            soft_wrap=True,
        )


def run_demo(to: Path, methods: Sequence[str] | Mapping[str, Mapping[str, Any]], model: str) -> None:
    """Explain the demo scenes with some methods and print the paths of the files."""
    from vitrail.tools.demo import DEMO_SCENES, explain_demo_scenes, write_demo

    if find_spec("matplotlib") is None:  # found out before, not after, minutes of work
        err.print(
            "[yellow]note:[/yellow] matplotlib is not installed, so only the page is written, without figure.png: "
            'pip install "vitrail\\[plot]"',
            soft_wrap=True,
        )
    noun = "method" if len(methods) == 1 else "methods"
    with progress_bar(f"Explaining scenes with {len(methods)} {noun}", len(DEMO_SCENES)) as advance:
        scenes = explain_demo_scenes(methods, model, advance, advance.evaluations)
    with progress_bar("Drawing the maps", 1):
        image, page = write_demo(scenes, to)
    figure = f"Figure: [bold]{image}[/bold]\n" if image is not None else ""
    out.print(f"{figure}Page:   [bold]{page}[/bold]", soft_wrap=True)
