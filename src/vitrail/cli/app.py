"""The ``vitrail`` command: assembles the commands and reports errors."""

from __future__ import annotations

import sys
import warnings
from typing import Annotated

import typer

from vitrail.cli.audit import audit
from vitrail.cli.bench import bench
from vitrail.cli.check import check
from vitrail.cli.command import InterruptedCommandError, as_command
from vitrail.cli.common import WarningPrinter, err, out
from vitrail.cli.compare import compare
from vitrail.cli.demo import demo
from vitrail.cli.doctor import doctor
from vitrail.cli.explain import explain
from vitrail.cli.figure import figure
from vitrail.cli.leaderboard import leaderboard
from vitrail.cli.methods import methods
from vitrail.cli.models import models
from vitrail.cli.report import report
from vitrail.cli.serve import serve
from vitrail.cli.train_explainer import train_explainer
from vitrail.errors import MapWarning, VitrailError

HELP = """Relevance maps for transformers: which part of an image or text led a model to its output.

`vitrail demo` needs no image and no download. `vitrail COMMAND --help` describes a command.
"""
EXAMPLES = """Examples:

- `vitrail explain cat.jpg -m timm:vit_base_patch16_224 --method gradtoken --method vtranm`
- `vitrail doctor -m hf:facebook/deit-tiny-patch16-224`
- `vitrail bench scenes --workers 2` and then `vitrail report --open`
"""
#: The commands by group, in the order of ``vitrail --help``.
GROUPS = {
    "Explain a model's output": (demo, explain, check, figure, serve),
    "Inspect methods and models": (methods, models, doctor),
    "Evaluate methods": (compare, bench, report, audit, leaderboard),
    "Train": (train_explainer,),
}

app = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode="markdown", help=HELP, epilog=EXAMPLES)
for group, commands in GROUPS.items():
    for command in commands:
        app.command(rich_help_panel=group)(as_command(command))


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        out.print(f"vitrail {version('vitrail')}", highlight=False)
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    """Options of ``vitrail`` itself."""


def main() -> None:
    """Run the command line; errors that Vitrail raises become one line on standard error and exit code 2.

    The code is 1 if work was begun and not finished: images failed, parts were lost, or the disk is full. Ctrl-C
    becomes one line and exit code 130. Warnings are one line each.
    """
    warnings.showwarning = WarningPrinter()
    warnings.simplefilter("ignore", MapWarning)  # the commands list constant maps in their own output
    try:
        app()
    except (KeyboardInterrupt, InterruptedCommandError):
        err.print("interrupted; files that were finished are complete")
        sys.exit(130)
    except VitrailError as error:
        err.print("[red]error:[/red] ", end="")
        err.print(" ".join(str(error).split()), markup=False, highlight=False, soft_wrap=True)
        sys.exit(error.exit_status)


if __name__ == "__main__":
    main()
