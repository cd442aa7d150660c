"""Compare methods on a user's own model and images, and recommend one."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from vitrail import fast
from vitrail.capture.frozen import gradients_enabled
from vitrail.capture.inputs import ModelInputs
from vitrail.capture.model_structure import ModelStructure
from vitrail.capture.removal import TokenDropper
from vitrail.capture.structure import read_structure
from vitrail.errors import InputError, MapWarning, NotApplicableError
from vitrail.inputs.map_source import MapSource, PromptSource, QuestionSource
from vitrail.inputs.targets import Target
from vitrail.inputs.user_inputs import Inputs, to_model_inputs
from vitrail.methods import find
from vitrail.methods.cost import size_of
from vitrail.methods.registry import METHODS
from vitrail.models.loaded import LoadedModel, describe
from vitrail.pipeline.explain import explain
from vitrail.pipeline.recommendation import remember
from vitrail.targets.bound_targets import has_named_target
from vitrail.tools.compared_rows import ComparedRow, format_passes, ranked_rows, recommend

if TYPE_CHECKING:
    from vitrail.scores.comparison import RankedMethod

MOST_IMAGES = 64
#: Methods of more forward passes are not compared unless they are named.
FAST = 20.0
CONTROLS = ("centre", "random")
#: Controls of prompts, whose words have no centre.
TEXT_CONTROLS = ("random",)
PERCENTS = (0, 10, 25, 50, 75, 90)
FILL = "blur"


def _to_first(ranked: RankedMethod) -> str:
    """Difference to the first method with its interval, not corrected; = where a corrected test finds none."""
    if ranked.control:
        return "control"
    if ranked.to_best is None:
        return ""
    gap, low, high = (f"{100 * number:+.1f}" for number in ranked.to_best.difference)
    return f"{gap} [{low}, {high}]{' =' if ranked.tied_with_best else ''}"


@dataclass(frozen=True)
class MethodComparison:
    """Methods ranked on a user's own model and images.

    Attributes:
        model: The model's name.
        images: Number of images.
        removal: How patches were removed: "tokens" or the name of a fill.
        rows: Methods and controls, the most faithful first, then the controls.
        recommended: The recommended method, or None if no method is better than the controls.
        reason: Why, and how sure it is.
        refused: Methods that do not apply, with the reasons.
    """

    model: str
    images: int
    removal: str
    rows: tuple[ComparedRow, ...]
    recommended: str | None
    reason: str
    refused: Mapping[str, str] = field(default_factory=dict)

    def table(self) -> list[tuple[str, str, str, str, str, str]]:
        """Rows of text: method, faithfulness, difference to the first, class similarity, localisation, cost."""
        lines = []
        for row in self.rows:
            low, high = 100 * row.ranked.value.low, 100 * row.ranked.value.high
            lines.append((
                row.method, f"{100 * row.ranked.value.value:.1f} [{low:.1f}, {high:.1f}]", _to_first(row.ranked),
                "" if row.class_similarity is None else f"{row.class_similarity:.2f}",
                "" if row.localisation is None else f"{row.localisation:.2f}", f"{row.forwards:.0f}",
            ))  # fmt: skip
        return lines

    def __str__(self) -> str:
        header = ("method", "faithfulness ↑", "to the first", "class similarity ↓", "localisation ↑", "forwards ↓")
        lines = [header, *self.table()]
        widths = [max(len(line[i]) for line in lines) for i in range(len(header))]
        text = "\n".join(
            "  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)).rstrip() for line in lines
        )
        return f"{text}\n\n{self.reason}"

    def to_dict(self) -> dict[str, Any]:
        """All numbers as JSON values."""
        return {
            "model": self.model, "images": self.images, "removal": self.removal,
            "rows": [row.to_dict() for row in self.rows], "recommended": self.recommended,
            "reason": self.reason, "refused": dict(self.refused),
        }  # fmt: skip

    def _repr_html_(self) -> str:
        from vitrail.viz.templating import render

        return render("comparison.html", comparison=self)


@gradients_enabled()
def compare(
    model: nn.Module | LoadedModel,
    images: Inputs,
    methods: Sequence[str] | None = None,
    *,
    target: Target = None,
    masks: NDArray[Any] | Tensor | None = None,
    batch_size: int = 16,
    seed: int = 0,
    advance: Callable[[int], None] = lambda _: None,
    tokenizer: Any = None,
    units: Any = None,
) -> MethodComparison:
    """Rank methods on your own model and images or prompts, and recommend one.

    The predicted class is explained, or a target of `vitrail.targets`. Patches are removed in the order of each map,
    most relevant first and least relevant first, by dropping tokens if the model supports it. The recommendation is
    kept by the hash of the model's weights, and ``explain(method="auto")`` uses it; the last comparison counts.

    Args:
        model: Your model object, or what ``load`` returned.
        images: At most 64 images, or with ``tokenizer`` prompts of a language model, or what the processor of a
            vision-language model returned, as for `vitrail.explain`.
        methods: Methods to compare; by default all that apply and cost little. The controls are always added.
        target: A prompt, box, region or contrast of `vitrail.targets`, one for all images or one for each; None for the
            predicted class. Faithfulness is then a share of the range of the target's values on each image.
        masks: Object masks, shape (B, height, width) in the size of the model's input, for localisation.
        batch_size: Most images in one pass of the methods.
        seed: Of the intervals and tests.
        advance: Called with the number of images evaluated, for progress.
        tokenizer: For prompts: the tokenizer of a language model, or the processor of a vision-language model. Words
            are then removed instead of patches, or both, and the target is the predicted token, or a token, an answer
            or a contrast of them.
        units: For prompts: what is removed, see `vitrail.explain`.

    Example:
        >>> from vitrail.testing import tiny_vit
        >>> images = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))
        >>> found = compare(tiny_vit(), images, ["transformer_mm", "gradsam"])
        >>> sorted(row.method for row in found.rows)
        ['centre', 'gradsam', 'random', 'transformer_mm']
    """
    loaded = describe(model)
    if tokenizer is not None:
        given = {"tokenizer": tokenizer, "units": units, "target": target, "batch_size": batch_size}
        return _compare_values(loaded, images, methods, given, None, seed, advance)
    if target is not None and not has_named_target(target):
        raise InputError(
            "compare explains the predicted class, or a target of vitrail.targets: wrap a class as contrast"
        )
    model_inputs = to_model_inputs(images, loaded)
    pixels = model_inputs.image
    if pixels is None:
        raise InputError("compare needs images, or prompts of a language model with tokenizer=…")
    if model_inputs.batch > MOST_IMAGES:
        raise InputError(f"{model_inputs.batch} images are too many for a comparison: pass at most {MOST_IMAGES}")
    if target is not None:
        given = {"target": target, "batch_size": batch_size}
        return _compare_values(loaded, images, methods, given, masks, seed, advance)
    with fast.unchanged(loaded.module):
        return _compare_classes(loaded, model_inputs, pixels, methods, masks, batch_size, seed, advance)


def _compare_classes(
    loaded: LoadedModel,
    model_inputs: ModelInputs,
    pixels: Tensor,
    methods: Sequence[str] | None,
    masks: NDArray[Any] | Tensor | None,
    batch_size: int,
    seed: int,
    advance: Callable[[int], None],
) -> MethodComparison:
    """Explain the predicted classes, remove patches in the order of each map, and rank the methods."""
    from vitrail.scores.evaluator import Evaluator
    from vitrail.scores.presets import Curve, LevelGrid, Preset

    structure = read_structure(loaded.module, model_inputs)
    chosen, refused = _applicable(structure, loaded.module, methods)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MapWarning)
        explanations = explain(loaded, pixels, methods=[*chosen, *CONTROLS], target="top2", batch_size=batch_size)
    removal = _removal(loaded.module, pixels)
    levels = LevelGrid(PERCENTS)
    curves = (Curve("positive", "morf", removal, levels), Curve("negative", "lerf", removal, levels))
    preset = Preset("compare", "vitrail.compare", curves, "explained", "unit", extras=("srg",))
    records = Evaluator(loaded, preset, advance=advance, seed=seed)(
        pixels, {name: e.maps[:, 0] for name, e in explanations.items()}
    )
    columns = {n: records.scores(preset, n)[f"srg({removal})"].cpu().numpy()[:, None] for n in explanations}
    similarities = {name: _class_similarity(e) for name, e in explanations.items()}
    localisations = {name: _localisation(e, masks) for name, e in explanations.items()}
    ranked = _rank(columns, CONTROLS, structure, seed, similarities, localisations)
    return _recommended(loaded, ranked, len(pixels), removal, refused)


def _compare_values(
    loaded: LoadedModel,
    inputs: Inputs,
    methods: Sequence[str] | None,
    given: Mapping[str, Any],
    masks: NDArray[Any] | Tensor | None,
    seed: int,
    advance: Callable[[int], None],
) -> MethodComparison:
    """The same for targets of `vitrail.targets` on images, for prompts, and for questions about images.

    The value of the target is followed while patches, words or both are removed. ``given`` are further arguments of
    `vitrail.explain`.
    """
    from vitrail.tools.removal_curves import faithfulness

    controls = TEXT_CONTROLS if "tokenizer" in given else CONTROLS
    with warnings.catch_warnings(), fast.unchanged(loaded.module):
        warnings.simplefilter("ignore", MapWarning)
        explained = explain(loaded, inputs, "random", **given)
        source, count = explained.source, len(explained.maps)
        if not isinstance(source, PromptSource | QuestionSource if "tokenizer" in given else MapSource):
            raise InputError("compare takes prompts of language models, or images: texts of encoders are not supported")
        if count > MOST_IMAGES:
            raise InputError(f"{count} prompts are too many for a comparison: pass at most {MOST_IMAGES}")
        chosen, refused = _applicable(source.structure, source.loaded.module, methods)
        explanations = explain(loaded, inputs, methods=[*chosen, *controls], **given)
        columns, removal = faithfulness(source, explanations, [p / 100 for p in PERCENTS[1:]], advance)
    localisations = {name: _localisation(e, masks) for name, e in explanations.items()}
    ranked = _rank(columns, controls, source.structure, seed, {}, localisations)
    return _recommended(loaded, ranked, count, removal, refused)


def _rank(
    faithfulness: Mapping[str, NDArray[np.float64]],
    controls: Sequence[str],
    structure: ModelStructure,
    seed: int,
    similarities: Mapping[str, Sequence[float] | None],
    localisations: Mapping[str, Sequence[float] | None],
) -> tuple[ComparedRow, ...]:
    """Methods and controls ranked by faithfulness, shape (inputs, 1) each."""
    values = {
        "faithfulness": {name: column[:, 0].tolist() for name, column in faithfulness.items()},
        "class_similarity": {name: own for name, own in similarities.items() if own is not None},
        "localisation": {name: own for name, own in localisations.items() if own is not None},
    }
    return ranked_rows(values, controls, {name: _cost(name, structure) for name in faithfulness}, seed)


def _recommended(
    loaded: LoadedModel, rows: tuple[ComparedRow, ...], count: int, removal: str, refused: Mapping[str, str]
) -> MethodComparison:
    """The comparison with its recommendation, which is remembered for the model, also if it is none."""
    recommended, reason = recommend(rows)
    remember(loaded.module, {"method": recommended, "model": loaded.name, "images": count})
    return MethodComparison(loaded.name, count, removal, rows, recommended, reason, refused)


def _applicable(
    structure: ModelStructure, module: nn.Module, methods: Sequence[str] | None
) -> tuple[list[str], dict[str, str]]:
    """Methods to compare, and those that were left out with the reasons."""
    chosen, refused = [], {}
    for name in methods if methods is not None else [m for m in METHODS if METHODS[m].family != "control"]:
        label, method, options = find(name)
        try:
            method.check(structure, options, model=module)
        except NotApplicableError as error:
            if methods is not None:
                raise
            refused[label] = str(error)
            continue
        if methods is None and _cost(label, structure) > FAST:
            refused[label] = f"costs {format_passes(_cost(label, structure))} a map: name it to compare it"
            continue
        if label not in (*CONTROLS, *TEXT_CONTROLS):
            chosen.append(label)
    if not chosen:
        raise InputError("no method is left to compare: name methods that apply to this model, see `vitrail doctor`")
    return chosen, refused


def _cost(name: str, structure: ModelStructure) -> float:
    _, method, options = find(name)
    shared = 0.0 if method.family == "control" else 1.0 if method.score is None else 3.0
    return shared + method.cost(options, size_of(structure), 1).forwards


def _removal(module: nn.Module, images: Tensor) -> str:
    dropper = TokenDropper.or_none(module, ModelInputs((images[:1],)).onto(module).args[0])
    return FILL if dropper is None else "tokens"


def _class_similarity(explanation: Any) -> list[float] | None:
    """Rank correlation between the maps of the two likeliest classes of each image."""
    if explanation.maps.shape[1] < 2:
        return None
    from vitrail.scores.agreement import spearman

    grids = (explanation.grid[:, k].flatten(1).float().cpu() for k in range(2))
    return [float(rho) for rho in spearman(*grids)]


def _localisation(explanation: Any, masks: NDArray[Any] | Tensor | None) -> list[float] | None:
    """Average precision of each map against its mask."""
    if masks is None:
        return None
    from vitrail.scores.segmentation import average_precision

    truth = torch.as_tensor(np.asarray(masks)) > 0
    maps = explanation.maps[:, 0].cpu()
    if truth.shape != maps.shape:
        raise InputError(f"masks have shape {tuple(truth.shape)}, the maps {tuple(maps.shape)}: resize the masks")
    return [float(value) for value in average_precision(maps.flatten(1), truth.flatten(1))]
