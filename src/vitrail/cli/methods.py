"""``vitrail methods``."""

from __future__ import annotations

import inspect
from typing import Annotated

import typer

from vitrail.cli.common import out, plain_table

#: Column headings for kinds of models whose names are too long.
SHORT_KINDS = {"distilled": "dist.", "registers": "reg."}


def methods(
    name: Annotated[
        str | None,
        typer.Argument(help="A method; prints its description, options, variants and card.", show_default=False),
    ] = None,
) -> None:
    """List the methods and where they apply, or describe one."""
    if name is None:
        _list_methods()
    else:
        _describe(name)


def _list_methods() -> None:
    from vitrail.methods import METHODS
    from vitrail.methods.model_kinds import MODEL_KINDS
    from vitrail.methods.registry import PATENT_NOTES

    kinds = [SHORT_KINDS.get(kind, kind) for kind in MODEL_KINDS]
    table = plain_table("method", "class-specific", *kinds, padding=(0, 1))
    for column in table.columns:
        column.no_wrap = True
    for family in dict.fromkeys(m.family for m in METHODS.values()):
        table.add_row(f"[dim]{family}{' †' if family in PATENT_NOTES else ''}[/dim]")
        for method in (m for m in METHODS.values() if m.family == family):
            applies = ("–" if method.reason_against(kind) else "✓" for kind in MODEL_KINDS)
            table.add_row(f"  {method.name}", "yes" if method.class_specific else "no", *applies)
    out.print(table)
    out.print(
        "Kinds of models, by what the head reads: the CLS token; CLS and distillation tokens; CLS in a model with "
        "registers; the mean of the patches; an attention pool. Then Swin, and text models. `vitrail methods NAME` "
        "describes a method.",
        highlight=False,
    )
    for note in PATENT_NOTES.values():
        out.print(f"† {note}", highlight=False)


def _describe(name: str) -> None:
    from vitrail.methods import find
    from vitrail.methods.model_kinds import MODEL_KINDS
    from vitrail.methods.registry import PATENT_NOTES

    _, method, options = find(name)
    out.print(f"[bold]{method.name}[/bold]  {method.title}, {method.family}; cite {method.cite}")
    lines = (inspect.getdoc(method.compute) or "").splitlines()
    description = [line for line in lines if not line.strip().startswith(("trace:", "probe:"))]
    out.print("\n".join(description), markup=False, highlight=False, soft_wrap=True)
    out.print("\nDefaults: " + (", ".join(f"{k}={v}" for k, v in options.items()) or "none"), markup=False)
    for variant, chosen in method.variants.items():
        out.print(f"  {method.name}:{variant}  " + ", ".join(f"{k}={v}" for k, v in chosen.items()), markup=False)
    for kind in MODEL_KINDS:
        reason = method.reason_against(kind)
        if reason:
            out.print(f"Not on {kind}: {reason}.", markup=False)
    if method.family in PATENT_NOTES:
        out.print(PATENT_NOTES[method.family], markup=False, highlight=False, soft_wrap=True)
    _print_card(method.name)


def _print_card(name: str) -> None:
    from rich.text import Text

    from vitrail.methods.card import MODELS, RATINGS, method_card

    card = method_card(name)
    table = plain_table("card", "", "rating", padding=(0, 1), collapse_padding=True, pad_edge=False)
    for title in MODELS.values():
        table.add_column(title, justify="right")
    for column in table.columns:
        column.no_wrap = True
    section = ""
    for line in card.lines.values():
        rating = Text(line.rating, style=RATINGS.get(line.rating, ""))
        title = "" if line.section == "needs" else line.title
        cells = (line.cells.get(model, "") for model in MODELS)
        table.add_row("" if line.section == section else line.section, title, rating, *cells)
        section = line.section
    out.print()
    out.print(table)
    remarks = [f"{line.section}, {line.title}: {line.remark}" for line in card.lines.values() if line.remark]
    for remark in (f"needs: {card.lines['needs'].title}", *remarks):
        out.print(f"  {remark}", markup=False, highlight=False, soft_wrap=True)
    out.print(
        "pass: on all three photograph models; mixed: on some; fail: on none. The last column is the embedded model. "
        "The rules are on the page of the methods in the documentation.",
        highlight=False,
    )
