"""``vitrail explain``: images, videos, sound, a folder of images, or texts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from vitrail.cli.bench import AddressOption, EngineOption, WorkersOption
from vitrail.cli.common import (
    DeviceOption,
    ImportOption,
    ModelOption,
    ScoresOption,
    TargetOption,
    WeightsOption,
    load_model,
    model_sentence,
    out,
    parse_targets,
    plain_table,
    progress_bar,
    require_files,
    require_output,
)
from vitrail.cli.demo import run_demo
from vitrail.cli.explain_directory import explain_directory
from vitrail.cli.explain_texts import (
    AnswerOption,
    GenerateOption,
    LanguageOptions,
    TextOption,
    TokenOption,
    UnitsOption,
    explain_texts,
    load_text_model,
    save_figure,
    unlikely_targets,
)
from vitrail.cli.named_targets import NamedTargetOptions, detection_table, is_detector, with_named_targets
from vitrail.data.addresses import is_address
from vitrail.errors import InputError

if TYPE_CHECKING:
    from vitrail.models.image_geometry import ImageGeometry

#: Default method; `vitrail.explain` has another one for language models.
DEFAULT = "leadlight"
#: With more classes than this, the first ones are named in the table, and the others counted.
MAX_LABELS = 6
#: With more images than this, those that were cropped or turned are counted instead of described.
MAX_SENTENCES = 8


@with_named_targets
def explain(
    images: Annotated[
        list[str] | None,
        typer.Argument(
            help="Image, video or sound files, one folder of images, or one source of images: tar shards, Parquet, "
            "Arrow or CSV files, hf:NAME, or an address such as s3://… Without any: the embedded scenes.",
            show_default=False,
        ),
    ] = None,
    model: ModelOption = "scenes",
    weights: WeightsOption = "pretrained",
    method: Annotated[
        list[str] | None,
        typer.Option(
            "--method",
            metavar="NAME",
            help="A method: NAME, NAME:VARIANT or NAME:OPTION=VALUE,… Repeat it to compare several. "
            "See `vitrail methods`. Default: leadlight, and attnlrp:released for language models.",
            show_default=False,
        ),
    ] = None,
    target: TargetOption = None,
    named: NamedTargetOptions = NamedTargetOptions(),  # noqa: B008 - it is frozen
    text: TextOption = None,
    token: TokenOption = None,
    answer: AnswerOption = None,
    generate: GenerateOption = None,
    units: UnitsOption = None,
    to: Annotated[Path, typer.Option("--out", "-o", metavar="DIR", help="Folder for the results.")] = Path("out"),
    device: DeviceOption = "cpu",
    scores: ScoresOption = None,
    recursive: Annotated[bool, typer.Option("--recursive", "-r", help="Include subfolders of a folder.")] = False,
    column: Annotated[
        str, typer.Option("--column", help="Column of the images, or of their paths, in tables.", show_default=False)
    ] = "",
    split: Annotated[str, typer.Option("--split", help="Split of a Hugging Face data set.", show_default=False)] = "",
    overlays: Annotated[
        bool | None,
        typer.Option(
            "--overlays/--no-overlays",
            help="Whether to draw overlays and an HTML page of a folder or source, which reads every image once more. "
            "Default: yes for a local folder, no for other sources.",
            show_default=False,
        ),
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Also check each map, see `vitrail check`; maps that fail are marked.")
    ] = False,
    smooth: Annotated[
        str | None,
        typer.Option(
            "--smooth",
            metavar="flips|noise",
            help="Average maps over mirrored and scaled copies, or over noisy copies, of each image.",
        ),
    ] = None,
    original: Annotated[
        bool | None,
        typer.Option(
            "--original/--no-original",
            help="Also write overlays at the size of the image file, with the part that the model saw outlined. "
            "Default: yes for image files, no for a folder.",
            show_default=False,
        ),
    ] = None,
    recompute: Annotated[
        bool | None,
        typer.Option(
            "--recompute/--no-recompute",
            help="Whether backward passes compute the activations of each block again instead of keeping them: less "
            "memory, more time, the same maps. Default: where an input does not fit in the memory of a GPU.",
            show_default=False,
        ),
    ] = None,
    engine: EngineOption = "local",
    workers: WorkersOption = None,
    address: AddressOption = None,
    imports: ImportOption = None,
) -> None:
    """Explain images, videos, sound, folders or texts.

    Writes overlays, maps and a manifest for each image and method, and a figure that compares the methods.

    A folder or another source is explained by --workers processes or by a Ray cluster: maps in half precision,
    overlays, an HTML page and a table of all maps. It can be interrupted and started again; nothing is read twice.
    Images that fail are counted in the last line, and the exit status is then 1.

    For example: `vitrail explain cat.jpg -m timm:vit_base_patch16_224 --method vtranm --method gradtoken --target top2`
    """
    methods = list(dict.fromkeys(method or [DEFAULT]))
    _check_names(methods, imports)
    require_output(to)
    folder = next((text for text in images or () if is_address(text) or Path(text).is_dir()), None)
    language = LanguageOptions(token, answer, named.against if token or answer else None, generate, units)
    if language.given and not text:
        raise InputError("--token, --answer, --generate and --units are for texts: pass one with --text")
    if token or answer:
        named = replace(named, against=None)
    if named.row(target) is not None and (text or not images):
        raise InputError("--prompt, --box and --region are for images: pass files or a folder")
    if folder is not None and (named.regions or any("," in one for one in named.boxes or ())):
        raise InputError(
            "--region, and --box with corners, name a place in one image: for a folder, pass --prompt, or --box with "
            "the number of a query"
        )
    if smooth is not None and (text or not images or folder is not None):
        raise InputError("--smooth is for image files: it does not go with a folder, texts or the embedded scenes")
    if recompute is not None and (not (text or images) or folder is not None):
        raise InputError(
            "--recompute is for image files and texts: it does not go with a folder or the embedded scenes"
        )
    if (target or check) and not (text or images):
        raise InputError(
            "--target and --check are for files and texts: pass an image. Without one, the embedded scenes are "
            "explained for the class of each object"
        )
    if text:
        reader = load_text_model(text, images, model, weights, device, scores)
        explain_texts(text, reader, methods if method else None, target, language, to, check, recompute)
    elif not images:
        run_demo(to, methods, model)
    elif folder is None:
        _explain_images(
            [Path(text) for text in images], model, weights, device, scores, methods, target, to, check, smooth,
            original is not False, named, recompute,
        )  # fmt: skip
    elif len(images) > 1:
        kind = "a source" if is_address(folder) else "a folder"
        raise InputError(f"{folder} is {kind}: pass one folder alone, or image files; --recursive adds subfolders")
    else:
        explain_directory(
            folder, to, recursive=recursive, column=column, split=split,
            overlays=not is_address(folder) if overlays is None else overlays, model=model, weights=weights,
            methods=methods, target=target, scores=scores, original=bool(original), engine=engine, workers=workers,
            device=device, address=address, imports=imports or [], row=named.row(target),
        )  # fmt: skip


def _explain_images(
    images: list[Path], model: str, weights: str, device: str, scores: str | None, methods: list[str],
    target: list[str] | None, to: Path, check: bool, smooth: str | None, original: bool, named: NamedTargetOptions,
    recompute: bool | None,
) -> None:  # fmt: skip
    from vitrail.pipeline.explain import explain as explain_inputs

    require_files(images)
    for path in images:  # report an unreadable file before the model is loaded
        check_file(path)
    loaded = load_model(model, weights, device, scores)
    row = named.row(target)
    targets = parse_targets(loaded, target) if row is None else row
    if targets is None:
        _require_choice(loaded, images[0])
    table = plain_table("image", "explained", "method", "seconds", "maps")
    folders, geometries = _folder_names(images), {}
    words: dict[str, dict[str, list[Any]]] = {}
    remarks: dict[str, None] = {}
    with progress_bar("Explaining", len(images)) as advance:
        for path in images:
            explanations = explain_inputs(
                loaded, path, methods=methods, target=targets, check=check, smooth=smooth,
                progress=advance.evaluations, recompute=recompute,
            )  # fmt: skip
            first = next(iter(explanations.values()))
            geometries[path] = first.originals[0].geometry if first.originals else None
            if named.prompts:  # computed before they are saved
                words[path.name] = _prompt_words(explanations)
            drawn = original and geometries[path] is not None
            save_figure(explanations, explanations.save(to / folders[path], original=drawn))
            for name, e in explanations.items():
                table.add_row(escape(path.name), escape(_labels(e)), escape(name), f"{e.seconds:.2f}", _remark(e))
            remarks |= dict.fromkeys(f"{path.name}: {sentence}" for sentence in unlikely_targets(first))
            advance()
    out.print(table)
    for path in images if named.boxes else ():
        out.print(f"[bold]{escape(path.name)}[/bold]: boxes of the model", highlight=False)
        out.print(detection_table(loaded, path))
    for name, by_method in words.items():
        for method, lines in by_method.items():
            for line in lines:
                out.print(f"[dim]{escape(name)} {escape(method)}[/dim]", line)
    for remark in remarks:
        out.print(f"[yellow]{escape(remark)}[/yellow]", highlight=False, soft_wrap=True)
    _print_geometries(geometries)
    out.print(model_sentence(model, weights), highlight=False, soft_wrap=True)
    out.print(f"Overlays, maps and manifests: [bold]{to}[/bold]", soft_wrap=True)


def _require_choice(loaded: Any, path: Path) -> None:
    """Refuse a detector without --box, with a list of what it detects."""
    head = getattr(getattr(loaded.module, "config", None), "architectures", None) or [type(loaded.module).__name__]
    if "Detection" in str(head[0]) or "Detector" in type(loaded.module).__name__:
        if not is_detector(loaded, path):
            return
        out.print(detection_table(loaded, path))
        raise InputError("the model detects objects: choose one of these boxes with --box")


def _prompt_words(explanations: Any) -> dict[str, list[Any]]:
    """The words of the prompts in colour, by method; a method that does not apply to texts has none."""
    from vitrail.errors import NotApplicableError
    from vitrail.text.rendering import coloured_words

    found = {}
    for name, explanation in explanations.items():
        try:
            found[name] = [coloured_words(one) for one in explanation.text]
        except NotApplicableError:
            continue
    return found


def check_file(path: Path) -> None:
    """Report a file that cannot be read: an image, a sound or a video."""
    from vitrail.inputs.media_files import is_sound, is_video, read_sound, read_video
    from vitrail.models.preprocess import open_image

    if is_sound(path):
        read_sound(path)
    elif is_video(path):
        read_video(path)
    else:
        open_image(path)


def _check_names(methods: list[str], imports: list[str] | None) -> None:
    """Report an unknown method before anything is loaded or shown; "auto" is chosen later."""
    from vitrail.methods import find
    from vitrail.methods.plugins import import_modules

    if imports:
        import_modules(imports)
    for name in methods:
        if name != "auto":
            find(name)


def _print_geometries(geometries: Mapping[Path, ImageGeometry | None]) -> None:
    """Print which part of each image the model saw, if it was cropped or turned; a count if there are many."""
    changed = {path: one for path, one in geometries.items() if one is not None and (one.cropped or one.rotated)}
    if len(changed) > MAX_SENTENCES:
        cropped, rotated = (sum(getattr(one, name) for one in changed.values()) for name in ("cropped", "rotated"))
        out.print(
            f"Of {len(geometries)} images {cropped} were cropped and {rotated} turned; each manifest has the details.",
            highlight=False,
        )
        return
    for path, one in changed.items():
        out.print(f"{escape(path.name)}: {one}", highlight=False, soft_wrap=True)


def _labels(explanation: Any) -> str:
    """What the maps of an image explain; a count where there are many."""
    count = explanation.maps.shape[1]
    names = [explanation.label(0, k) for k in range(min(count, MAX_LABELS))]
    return "; ".join([*names, f"{count - MAX_LABELS} more"] if count > MAX_LABELS else names)


def _remark(explanation: Any) -> str:
    """Remarks on an explanation's maps: constant ones, and verdicts of the check."""
    constant = int(explanation.constant.sum())
    if constant:
        return f"{constant} constant"
    verdicts = dict.fromkeys(check.verdict for check in explanation.checks.values())
    return ", ".join(verdicts) or "ok"


def _folder_names(images: list[Path]) -> dict[Path, str]:
    """A folder name for each image: its stem, with a number where stems repeat."""
    names: dict[Path, str] = {}
    for path in images:
        name, n = path.stem, 2
        while name in names.values():
            name, n = f"{path.stem}-{n}", n + 1
        names[path] = name
    return names
