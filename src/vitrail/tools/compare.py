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


@dataclass(frozen=True)
class ComparedRow:
    """One method in a comparison.

    Attributes:
        method: The method.
        ranked: Its faithfulness with interval and paired tests: area under the probability with the least relevant
            patches removed first, minus the area with the most relevant first.
        class_similarity: Mean rank correlation between the maps of the two likeliest classes; 1 is class-agnostic.
        localisation: Mean average precision against the masks, or None without masks.
        forwards: Cost of one map in forward passes; a backward pass counts as two.
    """

    method: str
    ranked: RankedMethod
    class_similarity: float | None
    localisation: float | None
    forwards: float


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
        rows = [
            {
                "method": row.method, "control": row.ranked.control, "faithfulness": list(row.ranked.value),
                "tied_with_best": row.ranked.tied_with_best,
                "to_best": None if row.ranked.to_best is None else list(row.ranked.to_best.difference),
                "class_similarity": row.class_similarity, "localisation": row.localisation, "forwards": row.forwards,
            }
            for row in self.rows
        ]  # fmt: skip
        return {
            "model": self.model, "images": self.images, "removal": self.removal, "rows": rows,
            "recommended": self.recommended, "reason": self.reason, "refused": dict(self.refused),
        }  # fmt: skip

    def _repr_html_(self) -> str:
        from vitrail.viz.templating import render

        return render("comparison.html", comparison=self)


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
    kept by the hash of the model's weights, and ``explain(method="auto")`` uses it.

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
    columns: Mapping[str, NDArray[np.float64]],
    controls: Sequence[str],
    structure: ModelStructure,
    seed: int,
    similarities: Mapping[str, float | None],
    localisations: Mapping[str, float | None],
) -> tuple[ComparedRow, ...]:
    """Methods and controls ranked by faithfulness, of which each column has one value for each input."""
    from vitrail.scores.comparison import MethodValues, rank_methods

    values = {
        name: MethodValues(tuple(f"{i:03d}" for i in range(len(column))), column) for name, column in columns.items()
    }
    return tuple(
        ComparedRow(name, one, similarities.get(name), localisations.get(name), _cost(name, structure))
        for name, one in rank_methods(values, "up", controls, seed=seed).items()
    )


def _recommended(
    loaded: LoadedModel, rows: tuple[ComparedRow, ...], count: int, removal: str, refused: Mapping[str, str]
) -> MethodComparison:
    """The comparison with its recommendation, which is remembered for the model."""
    recommended, reason = _recommend(rows)
    if recommended is not None:
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
            refused[label] = f"costs {_passes(_cost(label, structure))} a map: name it to compare it"
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


def _class_similarity(explanation: Any) -> float | None:
    if explanation.maps.shape[1] < 2:
        return None
    from vitrail.scores.agreement import spearman

    rho = spearman(explanation.grid[:, 0].flatten(1).float().cpu(), explanation.grid[:, 1].flatten(1).float().cpu())
    finite = rho[rho.isfinite()]
    return float(finite.mean()) if len(finite) else None


def _localisation(explanation: Any, masks: NDArray[Any] | Tensor | None) -> float | None:
    if masks is None:
        return None
    from vitrail.scores.segmentation import average_precision

    truth = torch.as_tensor(np.asarray(masks)) > 0
    maps = explanation.maps[:, 0].cpu()
    if truth.shape != maps.shape:
        raise InputError(f"masks have shape {tuple(truth.shape)}, the maps {tuple(maps.shape)}: resize the masks")
    return float(average_precision(maps.flatten(1), truth.flatten(1)).nanmean())


def _recommend(rows: Sequence[ComparedRow]) -> tuple[str | None, str]:
    """The cheapest of the class-specific methods that are not known to be worse than the best, with the reason."""
    methods = [row for row in rows if not row.ranked.control]
    better = [row for row in methods if row.ranked.to_control is not None and row.ranked.to_control.significant
              and row.ranked.to_control.difference.value > 0]  # fmt: skip
    if not better:
        return None, (
            "No method is significantly better than the controls on these inputs: use more of them, or do not rely on "
            "maps of this model."
        )
    specific = [row for row in better if row.class_similarity is None or row.class_similarity < 0.99]
    best = (specific or better)[0]
    tied = [row for row in specific or better if row.ranked.tied_with_best or row is best]
    # On few inputs a corrected test finds no difference whatever it is: the interval must not show one either.
    even = [row for row in tied if row is best or row.ranked.to_best is None or row.ranked.to_best.difference[2] >= 0]
    choice = min(even, key=lambda row: (row.forwards, -row.ranked.value.value))
    others = [row.method for row in tied if row is not choice]
    sure = (
        f"Not significantly different from it: {', '.join(others)}"
        if others
        else "Every other class-specific method is significantly less faithful"
        if len(specific or better) > 1
        else "It is the only method that is significantly better than the controls"
    )
    return choice.method, (
        f"Recommended: {choice.method}, {100 * choice.ranked.value.value:.1f} points of faithfulness at "
        f"{_passes(choice.forwards)} a map. {sure}."
    )


def _passes(forwards: float) -> str:
    """A number of forward passes, for display."""
    count = f"{forwards:.0f}"
    return f"{count} forward pass{'' if count == '1' else 'es'}"
