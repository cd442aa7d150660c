"""``vitrail compare``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from vitrail.cli.common import (
    DeviceOption,
    ModelOption,
    ScoresOption,
    WeightsOption,
    load_model,
    model_sentence,
    out,
    plain_table,
    require_files,
    require_output,
)
from vitrail.cli.explain_texts import (
    AnswerOption,
    LanguageOptions,
    TextOption,
    TokenOption,
    UnitsOption,
    load_text_model,
)
from vitrail.cli.named_targets import NamedTargetOptions, with_named_targets
from vitrail.errors import InputError, writing

#: Below the table.
LEGEND = (
    "[…]: 95 % intervals, not corrected. =: not significantly different from the first (paired permutation test, Holm)."
)
SUFFIXES = {".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff"}


@with_named_targets
def compare(
    images: Annotated[
        list[Path] | None, typer.Argument(help="Image files or folders, at most 64 images.", show_default=False)
    ] = None,
    model: ModelOption = "scenes",
    weights: WeightsOption = "pretrained",
    method: Annotated[
        list[str] | None,
        typer.Option(
            "--method", metavar="NAME", help="A method to compare. Repeat it. Default: all that apply and cost little."
        ),
    ] = None,
    named: NamedTargetOptions = NamedTargetOptions(),  # noqa: B008 - it is frozen
    text: TextOption = None,
    token: TokenOption = None,
    answer: AnswerOption = None,
    units: UnitsOption = None,
    to: Annotated[Path | None, typer.Option("--out", "-o", metavar="FILE", help="JSON file for the numbers.")] = None,
    device: DeviceOption = "cpu",
    scores: ScoresOption = None,
) -> None:
    """Compare methods on your own model and images or texts.

    Patches are removed in the order of each map; faithfulness is the area between the curves of the least and the most
    relevant patches first. Of prompts, words are removed. `vitrail explain --method auto` then uses the recommended
    method.

    For example: `vitrail compare photos/ -m timm:vit_base_patch16_224`
    """
    from vitrail.models.preprocess import open_image
    from vitrail.tools.compare import MOST_IMAGES
    from vitrail.tools.compare import compare as compare_methods

    if to is not None:
        require_output(to, folder=False)
    options = LanguageOptions(token, answer, named.against if token or answer else None, None, units)
    given = dict[str, Any]()
    opened: Any
    if text:
        reader = load_text_model(text, images, model, weights, device, scores, announce=False)
        model, loaded, opened = reader.model, reader.loaded, list(text)
        given = {"target": reader.targets(options, None), "tokenizer": reader.tokenizer, "units": units}
    elif not images or options.given:
        raise InputError("pass image files, or texts with --text; --token, --answer and --units are for texts")
    else:
        given = {"target": named.row()}
        require_files(images)
        files = [file for path in images for file in (_images_in(path) if path.is_dir() else [path])]
        if not files:
            raise InputError(f"no image files were found in {images[0]}: pass .jpg or .png files")
        if len(files) > MOST_IMAGES:
            out.print(f"{len(files)} images were found; the first {MOST_IMAGES} are used.")
        opened = [open_image(file) for file in files[:MOST_IMAGES]]
        loaded = load_model(model, weights, device, scores)
    comparison = compare_methods(loaded, opened, method, **given)
    # Without masks there is no localisation.
    headings = ("method", "faithfulness ↑", "difference to the first", "class\nsimil-\narity ↓", "forward\npasses ↓")
    table = plain_table(*headings, padding=(0, 1, 0, 0), pad_edge=False)
    for column in table.columns[1:]:
        column.no_wrap = True
    for row in comparison.table():
        table.add_row(*map(escape, (*row[:4], row[5])), style="bold" if row[0] == comparison.recommended else "")
    out.print(table)
    out.print(f"[dim]{escape(LEGEND)}[/dim]", soft_wrap=True, highlight=False)
    out.print(escape(comparison.reason), soft_wrap=True, highlight=False)
    out.print(model_sentence(model, weights), highlight=False, soft_wrap=True)
    if to is not None:
        with writing(to, "choose another file with --out"):
            to.parent.mkdir(parents=True, exist_ok=True)
            to.write_text(json.dumps(comparison.to_dict(), indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _images_in(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES)
