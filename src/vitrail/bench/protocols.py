"""The protocols by name: what each needs of a data set, and its scores for a batch of maps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor

from vitrail.bench.batch import BenchProtocol, ScoreBatch, ScoresAndReasons
from vitrail.bench.faithfulness_protocols import FAITHFULNESS_PROTOCOLS
from vitrail.bench.grid_protocols import GRID_PROTOCOLS
from vitrail.bench.multiclass_protocols import MULTICLASS_PROTOCOLS, OBJECTS
from vitrail.bench.text_protocols import TEXT_PROTOCOLS
from vitrail.bench.world_protocols import WORLD_PROTOCOLS
from vitrail.capture.outputs import class_logits
from vitrail.errors import OptionError
from vitrail.scores.complexity import score_complexity
from vitrail.scores.pointing import score_box_pointing, score_pointing
from vitrail.scores.presets import find_presets
from vitrail.scores.registry import REGISTERED_SCORES, RegisteredScore, ScoreInputs, find_score
from vitrail.scores.sanity import parameter_randomisation
from vitrail.scores.segmentation import score_segmentation
from vitrail.scores.selectivity import score_selectivity
from vitrail.scores.sensitivity import score_sensitivity
from vitrail.scores.wsol import score_wsol

# -- scores of the maps a batch has ------------------------------------------------------------------------------------


def _score_with_masks(
    batch: ScoreBatch,
    method: str,
    target: str,
    masks: list[Tensor | None],
    score: Callable[[Tensor, Tensor], dict[str, Tensor]],
    missing: str,
) -> ScoresAndReasons:
    """Score maps against masks; an image without a mask gets the reason ``missing``."""
    maps = batch.maps(method, target)
    empty = torch.zeros(maps.shape[1:], dtype=torch.uint8)
    values = score(maps, torch.stack([empty if mask is None else mask for mask in masks]).to(maps.device))
    reasons = {row: missing for row, mask in enumerate(masks) if mask is None}
    return values, reasons | batch.missing_maps(method, target)


def _score_segmentation(batch: ScoreBatch, method: str, target: str) -> ScoresAndReasons:
    masks = [t.mask_of(k) for t, k in zip(batch.truths, batch.target_classes(target), strict=True)]
    return _score_with_masks(batch, method, target, masks, score_segmentation, "the image has no mask")


def _score_pointing(batch: ScoreBatch, method: str, target: str) -> ScoresAndReasons:
    masks = [t.box_mask_of(k) for t, k in zip(batch.truths, batch.target_classes(target), strict=True)]
    return _score_with_masks(batch, method, target, masks, score_pointing, "the image has no box of its class")


def _boxes(batch: ScoreBatch, method: str, target: str) -> tuple[list[Tensor], dict[int, str]]:
    """Return the boxes of each image's explained class, and the reasons for missing values."""
    boxes_or_none = [t.boxes_of(k) for t, k in zip(batch.truths, batch.target_classes(target), strict=True)]
    boxes = [torch.zeros(0, 4) if rectangles is None else rectangles for rectangles in boxes_or_none]
    reasons = {row: "the image has no box of its class" for row, rectangles in enumerate(boxes) if not len(rectangles)}
    return boxes, reasons | batch.missing_maps(method, target)


def _score_box_pointing(batch: ScoreBatch, method: str, target: str) -> ScoresAndReasons:
    boxes, reasons = _boxes(batch, method, target)
    return score_box_pointing(batch.maps(method, target), boxes), reasons


def _score_wsol(batch: ScoreBatch, method: str, target: str) -> ScoresAndReasons:
    boxes, reasons = _boxes(batch, method, target)
    top1 = torch.where(batch.labels >= 0, (batch.predicted == batch.labels).double(), torch.nan)
    return {**score_wsol(batch.maps(method, target), boxes), "top1": top1}, reasons


def _score_selectivity(batch: ScoreBatch, method: str, target: str) -> ScoresAndReasons:
    del target
    maps = torch.stack([batch.maps(method, name) for name in ("first", "second")], 1)
    masks, reasons = torch.zeros(maps.shape, dtype=torch.uint8), {}
    for row, truth in enumerate(batch.truths):
        if batch.columns["second"][row] is None:
            reasons[row] = f"the image has {len(truth.objects)} classes, expected two"
            continue
        for k, label in enumerate(sorted(truth.objects)):
            masks[row, k] = truth.objects[label] == 1
    failures = {row: why for (name, row), why in batch.failures.items() if name == method}
    return score_selectivity(maps, masks.to(maps.device)), failures | reasons


def _score_complexity(batch: ScoreBatch, method: str, target: str) -> ScoresAndReasons:
    grid = batch.explanations[method].grid
    chosen = grid[torch.arange(len(grid), device=grid.device), batch.target_columns(target).to(grid.device)]
    return score_complexity(chosen), batch.missing_maps(method, target)


def _score_registered(score: RegisteredScore, batch: ScoreBatch, method: str, target: str) -> ScoresAndReasons:
    """Compute a score of another package on the images that have what it needs."""
    explained = batch.target_classes(target)
    masks = [t.mask_of(k) for t, k in zip(batch.truths, explained, strict=True)]
    boxes = [t.boxes_of(k) for t, k in zip(batch.truths, explained, strict=True)]
    reasons: dict[int, str] = {}
    for row in range(len(batch.ids)):
        own_boxes = boxes[row]
        present = {"mask": masks[row] is not None, "boxes": own_boxes is not None and len(own_boxes) > 0,
                   "label": int(batch.labels[row]) >= 0}  # fmt: skip
        lacking = [need for need in score.needs if not present[need]]
        if lacking:
            reasons[row] = f"the image has no {' and no '.join(lacking)}"
    reasons |= batch.missing_maps(method, target)
    values = torch.full((len(batch.ids),), torch.nan, dtype=torch.float64)
    rows = [row for row in range(len(batch.ids)) if row not in reasons]
    if rows:
        at = torch.tensor(rows, device=batch.images.device)
        inputs = ScoreInputs(
            batch.maps(method, target)[at], batch.explanations[method].signed, batch.images[at],
            torch.tensor([explained[row] for row in rows]), batch.labels[at.to(batch.labels.device)],
            tuple(masks[row] for row in rows), tuple(boxes[row] for row in rows),
            batch.explainer.model.loaded.module,
        )  # fmt: skip
        result = torch.as_tensor(score.compute(inputs))
        if result.shape != (len(rows),):
            raise OptionError(
                f"the score {score.name} returned shape {tuple(result.shape)} for {len(rows)} images: it must return "
                f"one number per image, shape ({len(rows)},)"
            )
        values[rows] = result.detach().double().cpu()
    return {score.name: values}, reasons


# -- scores that need further maps -------------------------------------------------------------------------------------


def _score_sensitivity(batch: ScoreBatch, method: str, target: str) -> ScoresAndReasons:
    """Explain each image ten more times under small noise."""
    explain, reasons = _make_reexplain(batch, method, target)

    module = batch.explainer.model.loaded.module

    def predict(images: Tensor) -> Tensor:
        with torch.inference_mode():
            logits = class_logits(module, module(images))
        assert logits is not None
        return logits.argmax(1)

    seed = batch.explainer.context.plan.seed
    return score_sensitivity(explain, batch.images, seed=seed, predict=predict), reasons


def _score_sanity(batch: ScoreBatch, method: str, target: str) -> ScoresAndReasons:
    """Compare maps while weights are randomised from the head down, each step on top of the steps before."""
    explain, reasons = _make_reexplain(batch, method, target)
    model, seed = batch.explainer.model, batch.explainer.context.plan.seed
    values = parameter_randomisation(
        model.loaded.module, lambda: explain(batch.images), model.randomisation_steps, seed=seed
    )
    return values, reasons


def _make_reexplain(batch: ScoreBatch, method: str, target: str) -> tuple[Callable[[Tensor], Tensor], dict[int, str]]:
    """Return a function that explains the same classes of other images, and reasons, which it extends at each call."""
    classes = batch.classes.gather(1, batch.target_columns(target)[:, None])
    reasons = batch.missing_maps(method, target)

    def explain(images: Tensor) -> Tensor:
        explanations, failures = batch.explainer(batch.ids, images, classes, [method])
        reasons.update({row: why for (_, row), why in failures.items()})
        return explanations[method].maps[:, 0] if explanations else batch.maps(method, target)

    return explain, reasons


# -- the table ---------------------------------------------------------------------------------------------------------

_OWN_PROTOCOLS: dict[str, BenchProtocol] = {
    protocol.name: protocol
    for protocol in (
        BenchProtocol("segmentation", ("mask",), _score_segmentation),
        BenchProtocol("pointing", ("boxes",), _score_pointing),
        BenchProtocol("box_pointing", ("boxes",), _score_box_pointing),
        BenchProtocol("wsol", ("boxes",), _score_wsol),
        BenchProtocol("selectivity", ("two classes",), _score_selectivity, targets=(OBJECTS,)),
        BenchProtocol("complexity", (), _score_complexity),
        BenchProtocol("sensitivity", (), _score_sensitivity),
        BenchProtocol("sanity", (), _score_sanity),
        *FAITHFULNESS_PROTOCOLS,
        *GRID_PROTOCOLS,
        *MULTICLASS_PROTOCOLS,
        *TEXT_PROTOCOLS,
        *WORLD_PROTOCOLS,
    )
}


class ProtocolTable(Mapping[str, BenchProtocol]):
    """The package's protocols and the registered scores, by name."""

    def __getitem__(self, name: str) -> BenchProtocol:
        if name in _OWN_PROTOCOLS:
            return _OWN_PROTOCOLS[name]
        score = find_score(name)
        if score is None:
            raise KeyError(name)
        return BenchProtocol(name, score.needs, partial(_score_registered, score))

    def __iter__(self) -> Iterator[str]:
        yield from _OWN_PROTOCOLS
        yield from REGISTERED_SCORES

    def __len__(self) -> int:
        return len(_OWN_PROTOCOLS) + len(REGISTERED_SCORES)


PROTOCOLS = ProtocolTable()
"""The protocols that are not perturbation presets, by name."""


def needs_objects(names: Sequence[str]) -> bool:
    """Whether protocols use masks or boxes; a score of another package may use them without declaring it.

    Example:
        >>> needs_objects(["chefer21", "complexity"]), needs_objects(["chefer21", "pointing"])
        (False, True)
    """
    return any(name not in _OWN_PROTOCOLS or _OWN_PROTOCOLS[name].needs for name in names if name in PROTOCOLS)


def protocol_targets(names: Sequence[str], targets: Sequence[str]) -> list[tuple[str, str]]:
    """Return the pairs of protocol and target that are run.

    Example:
        >>> protocol_targets(["selectivity", "rise"], ["predicted", "label"])
        [('selectivity', 'things'), ('rise', 'predicted')]
    """
    pairs = []
    for name in names:
        if name in PROTOCOLS:
            scored_targets: Sequence[str] = PROTOCOLS[name].targets or targets
        else:
            scored_targets = [target for target in find_presets(name)[0].explains if target in targets]
        pairs += [(name, target) for target in scored_targets]
    return pairs
