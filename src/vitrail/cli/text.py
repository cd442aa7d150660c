"""The command line's part for texts: ``vitrail explain --text "…" --model hf:NAME``."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitrail.errors import InputError, OutputError, require
from vitrail.text.tokens import TokenizerSettings

if TYPE_CHECKING:
    from rich.console import Console

    from vitrail.models import LoadedModel


def tokenizer_of(model: str) -> Any:
    """The fast tokenizer that belongs to a model given as ``hf:NAME``, where NAME is a folder or a name of the hub.

    Raises:
        InputError: The model is of another source, or has no tokenizer.
    """
    source, _, name = model.partition(":")
    if source != "hf" or not name:
        raise InputError(f"texts are explained on Hugging Face models, as in --model hf:NAME; {model!r} is none")
    transformers: Any = require("transformers", "hf", "read texts")
    try:
        return transformers.AutoTokenizer.from_pretrained(name)
    except (OSError, ValueError, KeyError) as error:
        reason = str(error).strip().splitlines()[0]
        raise InputError(f"the tokenizer of {name} cannot be had ({reason}): is it a text model, and here?") from error


def explain_texts(
    texts: Sequence[str],
    about: LoadedModel,
    tokenizer: Any,
    methods: Sequence[str],
    target: Any,
    to: Path,
    out: Console,
    *,
    join: str = "sum",
) -> None:
    """Explain texts, print them in colour, and write scores, manifests, a page and a figure.

    Args:
        texts: The texts.
        about: The model.
        tokenizer: As ``tokenizer_of`` gives it.
        methods: As users type them.
        target: As `vitrail.explain` takes it.
        to: Folder for the results.
        out: Where the texts are printed.
        join: How pieces make words: "sum" or "max".
    """
    from rich.table import Table

    from vitrail.explain import explain
    from vitrail.viz.text import html, terminal

    given = list(texts)
    empty = [i for i, text in enumerate(given, 1) if not text.strip()]
    if empty:
        raise InputError(f"text {empty[0]} is empty: write something to explain")
    reading = TokenizerSettings(tokenizer, join)
    found = explain(about, given, methods=list(dict.fromkeys(methods)), target=target, tokenizer=reading)
    found.save(to)
    try:
        (to / "text.html").write_text(html(found), encoding="utf-8")
        if find_spec("matplotlib") is not None:
            found.figure().savefig(to / "figure.png")
    except OSError as error:
        raise OutputError(f"cannot write to {to} ({error})") from error
    first = next(iter(found.values()))
    for b in range(len(given)):
        for k in range(first.maps.shape[1]):
            out.print(f"[bold]{first.label(b, k)}[/bold]", highlight=False)
            table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
            for name, explanation in found.items():
                table.add_row(f"[dim]{name}[/dim]", terminal(explanation, b, k))
            out.print(table)
    out.print(f"Scores, page and manifests: [bold]{to}[/bold]", soft_wrap=True)
