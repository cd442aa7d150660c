"""The command line: each command a typed function over the library, with no logic of its own."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from vitrail.cli.bench import AddressOption, EngineOption, WorkersOption, bench, explain_directory
from vitrail.cli.common import (
    DeviceOption,
    ModelOption,
    WeightsOption,
    err,
    load_model,
    out,
    parse_targets,
    progress_bar,
)
from vitrail.cli.figure import figure
from vitrail.cli.report import report
from vitrail.cli.serve import serve
from vitrail.errors import InputError, VitrailError

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    help="**Vitrail** shows why a transformer decided what it decided, on the model you already have.",
)


@app.command()
def explain(
    images: Annotated[
        list[Path] | None,
        typer.Argument(help="Image files, or a folder of them; without any, the embedded scenes.", show_default=False),
    ] = None,
    model: ModelOption = "scenes",
    weights: WeightsOption = "pretrained",
    method: Annotated[
        list[str],
        typer.Option(
            "--method",
            help="A method, NAME:VARIANT or NAME:OPTION=VALUE,…; repeat it to compare. See `vitrail methods`.",
        ),
    ] = ["gradtoken"],  # noqa: B006 - typer reads the default, nobody changes it
    target: Annotated[
        list[str] | None,
        typer.Option(
            "--target",
            metavar="NAME|INDEX|topN",
            help="Class to explain, by name or index, or the N likeliest; repeat it for several. "
            "For open_clip models, a text. Default: the predicted class.",
        ),
    ] = None,
    text: Annotated[
        list[str] | None,
        typer.Option("--text", help="A text instead of images, for hf: models; repeat it for several."),
    ] = None,
    to: Annotated[Path, typer.Option("--out", "-o", metavar="DIR", help="Folder for the results.")] = Path("out"),
    device: DeviceOption = "cpu",
    recursive: Annotated[bool, typer.Option("--recursive", "-r", help="Of a folder: also folders below.")] = False,
    engine: EngineOption = "local",
    workers: WorkersOption = None,
    address: AddressOption = None,
) -> None:
    """Explain images: overlays, maps and a manifest for each, and one figure that compares the methods. Or texts.

    A folder of any size becomes maps in half precision and an index to query, by --workers processes or a Ray cluster;
    it is safe to kill and to run again.

    For example: `vitrail explain cat.jpg -m timm:vit_base_patch16_224 --method vtranm --method gradtoken --target top2`
    """
    from vitrail.explain import explain as run
    from vitrail.models.preprocess import open_image

    if text:
        from vitrail.cli.text import explain_texts, tokenizer_of

        if images:
            raise InputError("give either image files or --text, not both")
        tokenizer, about = tokenizer_of(model), load_model(model, weights, device)
        explain_texts(text, about, tokenizer, list(dict.fromkeys(method)), parse_targets(about, target), to, out)
        return
    if not images:
        _demo(to, list(dict.fromkeys(method)), model)
        return
    if any(path.is_dir() for path in images):
        if len(images) > 1:
            raise InputError("give one folder, or image files: --recursive takes the folders below as well")
        explain_directory(
            images[0], to, recursive=recursive, model=model, weights=weights, methods=list(dict.fromkeys(method)),
            target=target, engine=engine, workers=workers, device=device, address=address,
        )  # fmt: skip
        return
    for path in images:  # every file is looked at before the first is worked on
        open_image(path)
    about = load_model(model, weights, device)
    aimed = parse_targets(about, target)
    done: list[tuple[Path, Any]] = []
    names = _folders(images)
    with progress_bar("Explaining", len(images)) as advance:
        for path in images:
            found = run(about, path, methods=list(dict.fromkeys(method)), target=aimed)
            _figure(found, found.save(to / names[path]))
            done.append((path, found))
            advance()
    table = Table("image", "explained", "method", "seconds", "maps", box=None, header_style="bold")
    for path, found in done:
        for name, e in found.items():
            says = "; ".join(e.label(0, k) for k in range(e.maps.shape[1]))
            flat = int(e.flat.sum())
            table.add_row(path.name, says, name, f"{e.seconds:.2f}", f"{flat} without relevance" if flat else "ok")
    out.print(table)
    out.print(f"Pictures, maps and manifests: [bold]{to}[/bold]", soft_wrap=True)


@app.command()
def methods(
    name: Annotated[
        str | None, typer.Argument(help="One method, for its options and variants.", show_default=False)
    ] = None,
) -> None:
    """List the methods and the kinds of models each applies to, or describe one with its options."""
    from vitrail.methods import METHODS, find
    from vitrail.methods.registry import MODEL_KINDS

    if name is None:
        kinds = [{"distilled": "dist.", "registers": "reg."}.get(kind, kind) for kind in MODEL_KINDS]
        table = Table("method", "class", *kinds, box=None, header_style="bold", padding=(0, 1))
        for column in table.columns:
            column.no_wrap = True
        for family in dict.fromkeys(m.family for m in METHODS.values()):
            table.add_row(f"[dim]{family}[/dim]")
            for m in (m for m in METHODS.values() if m.family == family):
                fits = ("–" if m.reason_against(kind) else "✓" for kind in MODEL_KINDS)
                table.add_row(f"  {m.name}", "aware" if m.class_specific else "blind", *fits)
        out.print(table)
        out.print(
            "Kinds of models: heads that read a CLS token, CLS and distillation token, CLS beside registers, the mean "
            "of the patches, an attention pool; Swin; texts. `vitrail methods NAME` tells what a method computes, its "
            "options and variants.",
            highlight=False,
        )
        return
    import inspect

    _, found, options = find(name)
    out.print(f"[bold]{found.name}[/bold]  {found.title}, {found.family}; cite {found.cite}")
    lines = (inspect.getdoc(found.compute) or "").splitlines()
    about = [line for line in lines if not line.strip().startswith(("trace:", "probe:"))]
    out.print("\n".join(about), markup=False, highlight=False, soft_wrap=True)
    out.print("\nDefaults: " + (", ".join(f"{k}={v}" for k, v in options.items()) or "none"), markup=False)
    for variant, chosen in found.variants.items():
        out.print(f"  {found.name}:{variant}  " + ", ".join(f"{k}={v}" for k, v in chosen.items()), markup=False)
    for kind in MODEL_KINDS:
        reason = found.reason_against(kind)
        if reason:
            out.print(f"Not on {kind}: {reason}.", markup=False)


@app.command()
def models(
    pattern: Annotated[str | None, typer.Argument(help="Show names that hold this text.", show_default=False)] = None,
) -> None:
    """List model sources, whether they are installed, and names to use with --model."""
    from importlib.util import find_spec

    from vitrail.models import EMBEDDED_MODELS
    from vitrail.models.catalogue import CATALOGUE
    from vitrail.models.sources import SOURCE_PACKAGES, TESTED_MODELS, matching_names

    table = Table("source", "installed", "names tried in the tests" if pattern is None else f"names with {pattern!r}",
                  box=None, header_style="bold")  # fmt: skip
    if pattern is None:
        table.add_row(
            "embedded", "yes", "\n".join(f"{name}  [dim]{what}[/dim]" for name, what in EMBEDDED_MODELS.items())
        )
        papers = (f"{name}  [dim]{e.description}\n  {e.name}{f', hf:{e.hub}' if e.hub else ''}[/dim]" for name, e in
                  CATALOGUE.items())  # fmt: skip
        table.add_row("papers", "with timm", "\n".join(papers))
    for source, (module, extra) in SOURCE_PACKAGES.items():
        there = find_spec(module) is not None
        listed = TESTED_MODELS[source] if pattern is None else matching_names(source, pattern) if there else ()
        shown = "\n".join(f"{source}:{n}" for n in listed[:40])
        shown += f"\n… {len(listed) - 40} more" if len(listed) > 40 else ""
        table.add_row(source, "yes" if there else f'pip install "vitrail\\[{extra}]"', shown)
    out.print(table)


@app.command()
def doctor(model: ModelOption = "scenes", weights: WeightsOption = "pretrained", device: DeviceOption = "cpu") -> None:
    """Look inside a model: what was found, what it wants, and which methods work on it."""
    from vitrail.diagnose import examine

    about = load_model(model, weights, device)
    found = examine(about)
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    for label, value in found.rows:
        table.add_row(f"[bold]{label}[/bold]", value)
    out.print(table)
    verdicts = Table("method", "works", "remark", box=None, header_style="bold")
    for name, works, remark in found.verdicts:
        verdicts.add_row(name, "[green]yes[/green]" if works else "[red]no[/red]", remark)
    out.print(verdicts)


@app.command()
def demo(
    to: Annotated[Path, typer.Option("--out", "-o", metavar="DIR", help="Folder for the results.")] = Path("out/demo"),
) -> None:
    """Explain four embedded scenes with every method: one figure and one page, no network, no data."""
    _demo(to, None, "scenes")


app.command()(figure)
app.command()(bench)
app.command()(report)
app.command()(serve)


def _demo(to: Path, methods: list[str] | None, model: str) -> None:
    from vitrail.cli import demo as scenes

    with progress_bar("Explaining scenes", len(scenes.SHOWN)) as advance:
        shown = scenes.run(methods, model, advance)
    picture, page = scenes.write(shown, to)
    out.print(f"Figure: [bold]{picture}[/bold]\nPage:   [bold]{page}[/bold]", soft_wrap=True)


def _folders(images: list[Path]) -> dict[Path, str]:
    """A folder name for each image: its stem, with its parent's name or a number where stems clash."""
    names: dict[Path, str] = {}
    for path in images:
        name, n = path.stem, 2
        while name in names.values():
            name, n = f"{path.stem}-{n}", n + 1
        names[path] = name
    return names


def _figure(found: Any, folder: Path) -> None:
    from importlib.util import find_spec

    if find_spec("matplotlib") is not None:
        found.figure().savefig(folder / "figure.png")


def main() -> None:
    """Entry point: errors Vitrail raises on purpose become one line and exit code 2."""
    import warnings

    from vitrail.errors import MapWarning

    warnings.simplefilter("ignore", MapWarning)  # the table says it
    try:
        app()
    except VitrailError as error:
        err.print("[red]error:[/red] ", end="")
        err.print(" ".join(str(error).split()), markup=False, highlight=False, soft_wrap=True)
        sys.exit(2)


if __name__ == "__main__":
    main()
