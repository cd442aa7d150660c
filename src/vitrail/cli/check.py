"""``vitrail check``."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from vitrail.cli.common import (
    DeviceOption,
    ModelOption,
    ScoresOption,
    TargetOption,
    WeightsOption,
    load_model,
    model_sentence,
    out,
    parse_targets,
    progress_bar,
    require_files,
    require_output,
)
from vitrail.cli.explain_texts import (
    AnswerOption,
    LanguageOptions,
    TextOption,
    TokenOption,
    UnitsOption,
    default_method,
    load_text_model,
)
from vitrail.cli.named_targets import NamedTargetOptions, with_named_targets
from vitrail.errors import InputError, require, writing

if TYPE_CHECKING:
    from vitrail.trust.map_check import MapChecks


@with_named_targets
def check(
    images: Annotated[list[Path] | None, typer.Argument(help="Image files.", show_default=False)] = None,
    model: ModelOption = "scenes",
    weights: WeightsOption = "pretrained",
    method: Annotated[
        list[str] | None,
        typer.Option(
            "--method", metavar="NAME", help="A method, as for `vitrail explain`. Repeat it to check several."
        ),
    ] = None,
    target: TargetOption = None,
    named: NamedTargetOptions = NamedTargetOptions(),  # noqa: B008 - it is frozen
    text: TextOption = None,
    token: TokenOption = None,
    answer: AnswerOption = None,
    units: UnitsOption = None,
    budget: Annotated[
        str, typer.Option("--budget", help="'quick' (about 120 forward passes a map) or 'full'.")
    ] = "quick",
    to: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="DIR", help="Folder for a JSON file and a figure of each image."),
    ] = None,
    device: DeviceOption = "cpu",
    scores: ScoresOption = None,
) -> None:
    """Check whether maps of your images or texts can be trusted.

    Removes the patches that each map marks, and regions of the same shape elsewhere, and compares; computes the map
    again for another class, under noise, and after parts of the model were randomised. Of texts, words are removed.

    For example: `vitrail check cat.jpg -m timm:vit_base_patch16_224 --method leadlight --method rollout`
    """
    from vitrail.models.preprocess import open_image
    from vitrail.pipeline.explain import explain as explain_inputs

    if to is not None:
        require("matplotlib", "plot", "draw the figures that --out writes")
        require_output(to)
    options = LanguageOptions(token, answer, named.against if token or answer else None, None, units)
    if token or answer:
        named = replace(named, against=None)
    row, given = named.row(target), dict[str, Any]()
    things: list[tuple[str, Any]] = [(path.name, path) for path in images or ()]
    if text:
        reader = load_text_model(text, images, model, weights, device, scores, announce=False)
        model, loaded, targets = reader.model, reader.loaded, reader.targets(options, target)
        given, language = {"tokenizer": reader.tokenizer, "units": units}, reader.language
        things = [(f"text-{i}", one) for i, one in enumerate(text)]
    elif not images or options.given:
        raise InputError("pass image files, or texts with --text; --token, --answer and --units are for texts")
    else:
        require_files(images)
        for path in images:  # report an unreadable file before the model is loaded
            open_image(path)
        loaded, language = load_model(model, weights, device, scores), False
        targets = parse_targets(loaded, target) if row is None else row
    methods = list(dict.fromkeys(method or [default_method(language)]))
    for name, thing in things:
        with progress_bar(f"Checking {name}", len(methods)) as advance:
            explanations = explain_inputs(loaded, thing, methods=methods, target=targets, **given)
            first = explanations[methods[0]] if methods[0] in explanations else next(iter(explanations.values()))
            checks = [explanations.check(0, k, budget=budget) for k in range(first.maps.shape[1])]
            advance()
        for k, results in enumerate(checks):
            out.print(f"[bold]{escape(name)}[/bold]: {escape(first.label(0, k))}", highlight=False)
            for label, result in results.items():
                colour = "green" if result.passed else "yellow"
                out.print(f"  [bold]{escape(label)}[/bold]: [{colour}]{result.verdict}[/{colour}]", highlight=False)
                for sentence in result.sentences:
                    out.print(f"    {escape(sentence)}", highlight=False, soft_wrap=True)
            if to is not None:
                _save(to, f"{Path(name).stem}-{k}", results)
    out.print(model_sentence(model, weights), highlight=False, soft_wrap=True)
    if to is not None:
        out.print(f"Numbers and figures: [bold]{to}[/bold]", soft_wrap=True)


def _save(folder: Path, name: str, checks: MapChecks) -> None:
    with writing(folder, "choose another folder with --out"):
        folder.mkdir(parents=True, exist_ok=True)
        text = json.dumps(checks.to_dict(), indent=2, ensure_ascii=False)
        (folder / f"{name}.json").write_text(text + "\n", encoding="utf-8")
        checks.figure().savefig(folder / f"{name}.png")
