"""``vitrail models``."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Annotated

import typer

from vitrail.cli.common import out, plain_table

#: Maximum number of names printed for each source.
MAX_NAMES = 40


def models(
    pattern: Annotated[str | None, typer.Argument(help="Search all names for this text.", show_default=False)] = None,
) -> None:
    """List model sources and names for --model."""
    from vitrail.models.catalogue import CATALOGUE
    from vitrail.models.loading import EMBEDDED_MODELS
    from vitrail.models.sources import SOURCE_PACKAGES, TESTED_MODELS, matching_names

    heading = "names used in the tests" if pattern is None else f"names that contain {pattern!r}"
    table = plain_table("source", "installed", heading)
    if pattern is None:
        table.add_row(
            "embedded", "yes", "\n".join(f"{name}  [dim]{text}[/dim]" for name, text in EMBEDDED_MODELS.items())
        )
        papers = (
            f"{name}  [dim]{entry.description}\n  {entry.name}{f', hf:{entry.hub}' if entry.hub else ''}[/dim]"
            for name, entry in CATALOGUE.items()
        )
        table.add_row("papers", "with timm", "\n".join(papers))
    for source, (module, extra) in SOURCE_PACKAGES.items():
        installed = find_spec(module) is not None
        names = TESTED_MODELS[source] if pattern is None else matching_names(source, pattern) if installed else ()
        shown = "\n".join(f"{source}:{name}" for name in names[:MAX_NAMES])
        shown += f"\n… {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
        table.add_row(source, "yes" if installed else f'pip install "vitrail\\[{extra}]"', shown)
    out.print(table)
