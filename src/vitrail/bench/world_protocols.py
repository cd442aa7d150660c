"""The protocols of the worlds: does the map of A lie on A and not on B, in space, among the words, and in time."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from vitrail.bench.batch import BenchProtocol, ScoresAndReasons
from vitrail.bench.explainer import Reasons
from vitrail.bench.multiclass_protocols import OBJECTS
from vitrail.bench.world_batch import WorldBatch
from vitrail.bench.world_removal import CellRemoval, PromptWordRemoval
from vitrail.scores.continuation import continuation_faithfulness, continuation_log_probability
from vitrail.scores.pointing import pointing_game
from vitrail.scores.segmentation import sanitise_maps
from vitrail.scores.selectivity import score_selectivity

DISCRIMINATION, TOP_WORD, EVENT, MARKED = "discrimination", "top_word", "event", "marked_removal"
RIGHT_OBJECT, SOURCE, CONTINUATION = "right_object", "source", "continuation"


@dataclass
class ExplainedPairs:
    """Pairs of a world with the maps of both targets by every method.

    Attributes:
        ids: Ids of the examples.
        pairs: Targets and ground truth.
        explanations: By method, maps at the resolution of the ground truth, shape (b, 2, *axes).
        failures: Reasons for missing maps, by method and position.
        seconds: By method, time for the two maps of an example.
        columns: No class is explained.
        remove: Evaluates the targets with cells or words removed; None where no protocol needs it.
        module: The model, for protocols that call it.
    """

    ids: tuple[str, ...]
    pairs: WorldBatch
    explanations: dict[str, Tensor] = field(default_factory=dict)
    failures: Reasons = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    columns: dict[str, list[int | None]] = field(default_factory=dict)
    remove: CellRemoval | PromptWordRemoval | None = None
    module: nn.Module | None = None


def _as_images(values: Tensor) -> Tensor:
    """Axes before the last one joined: (b, 2, *axes) to (b, 2, rows, columns)."""
    return values.flatten(2, -2) if values.dim() > 3 else values[:, :, None]


def _score_discrimination(batch: ExplainedPairs, method: str, target: str) -> ScoresAndReasons:
    """Discrimination, relevance mass and pointing game of the two maps."""
    del target
    maps, masks = _as_images(batch.explanations[method]), _as_images(batch.pairs.masks)
    scores = score_selectivity(maps, masks)
    finite, _ = sanitise_maps(maps.flatten(0, 1))
    hits = pointing_game(finite, masks.flatten(0, 1)).double().view(-1, 2).mean(1)
    return {**scores, "hit": hits}, {}


def _score_top_word(batch: ExplainedPairs, method: str, target: str) -> ScoresAndReasons:
    """Whether the word with the highest score names the object, and its share of the positive relevance."""
    del target
    candidates = batch.pairs.candidates
    if candidates is None:
        return {}, dict.fromkeys(range(len(batch.ids)), "the example has no words")
    scores, named = batch.explanations[method].double(), batch.pairs.masks
    best = scores.masked_fill(~candidates, -torch.inf).amax(-1, keepdim=True)
    leaders = (scores == best) & candidates
    right = (leaders & named).sum(-1) / leaders.sum(-1)  # words of equal score share the lead
    positive = scores.clamp_min(0) * candidates
    total = positive.sum(-1)
    share = torch.where(total > 0, (positive * named).sum(-1) / total.clamp_min(1e-30), 0.0)
    return {"top": right.mean(1), "word_mass": share.mean(1)}, {}


def _score_event(batch: ExplainedPairs, method: str, target: str) -> ScoresAndReasons:
    """Whether the frames before the movement get less relevance per frame than those in which it happens."""
    del target
    positive = batch.explanations[method].double().clamp_min(0)
    if positive.dim() != 5:
        return {}, dict.fromkeys(range(len(batch.ids)), "the example has no frames")
    frames = positive.sum((3, 4))
    during = batch.pairs.masks.flatten(3).any(-1)
    before = during.int().cumsum(-1) == 0
    inside, outside = ((frames * one).sum(-1) / one.sum(-1) for one in (during, before))
    less = 0.5 * (torch.sign(inside - outside) + 1)
    reasons = dict.fromkeys((~before[:, 0].any(-1)).nonzero()[:, 0].tolist(), "the movement starts in the first frame")
    return {
        "less_before": less.mean(1),
        "event_share": (frames * during).sum(-1).div(frames.sum(-1).clamp_min(1e-30)).mean(1),
    }, reasons


def _score_marked_removal(batch: ExplainedPairs, method: str, target: str) -> ScoresAndReasons:
    """Whether removal of what the maps mark lowers the targets more than removal of as much at random."""
    del target
    assert batch.remove is not None
    return batch.remove.scores(batch.explanations[method]), {}


def _score_right_object(batch: ExplainedPairs, method: str, target: str) -> ScoresAndReasons:
    """Whether the object with the most positive relevance decides the answer, and whether the maximum lies on one."""
    del target
    objects, decides = batch.pairs.objects, batch.pairs.decides
    if objects is None or decides is None:
        return {}, dict.fromkeys(range(len(batch.ids)), "the example has no list of objects")
    maps = batch.explanations[method].double()
    present = objects.flatten(2).any(-1)
    mass = torch.einsum("bkhw,bohw->bko", maps.clamp_min(0), objects.double()).masked_fill(~present[:, None], -1.0)
    leaders = mass == mass.amax(-1, keepdim=True)
    first = (leaders & decides).sum(-1) / leaders.sum(-1)  # objects of equal relevance share the lead
    finite, _ = sanitise_maps(maps.flatten(0, 1))
    deciding = torch.einsum("bko,bohw->bkhw", decides.double(), objects.double()) > 0
    maximum = pointing_game(finite, deciding.flatten(0, 1)).double().view(-1, 2).mean(1)
    chance = decides.sum(-1) / present.sum(-1, keepdim=True)
    return {"first": first.double().mean(1), "maximum": maximum, "chance": chance.double().mean(1)}, {}


def _score_source(batch: ExplainedPairs, method: str, target: str) -> ScoresAndReasons:
    """Whether the source has the highest score: of all words, and its sentence of all sentences before the question."""
    sentences = batch.pairs.sentences
    if sentences is None:
        return {}, dict.fromkeys(range(len(batch.ids)), "the example has no sentences")
    words, reasons = _score_top_word(batch, method, target)
    scores, sources = batch.explanations[method].double(), batch.pairs.masks
    numbers = torch.arange(int(sentences.max()) + 1)
    members = sentences[..., None] == numbers
    present = members.any(-2)
    totals = (scores[..., None] * members).sum(-2).masked_fill(~present, -torch.inf)
    leaders = (totals == totals.amax(-1, keepdim=True)) & present
    right = (members & sources[..., None]).any(-2)
    share = (leaders & right).sum(-1) / leaders.sum(-1)
    return {"source": words["top"], "source_mass": words["word_mass"], "sentence": share.mean(1)}, reasons


def _score_continuation(batch: ExplainedPairs, method: str, target: str) -> ScoresAndReasons:
    """Comprehensiveness and sufficiency of the words of the facts for the log-probability of the answer."""
    del target
    pairs = batch.pairs
    if pairs.sentences is None or pairs.answers is None or batch.module is None or not isinstance(pairs.inputs, dict):
        return {}, dict.fromkeys(range(len(batch.ids)), "the example has no text that goes on")
    ids = torch.stack(pairs.inputs["input_ids"].chunk(2), 1).flatten(0, 1)
    real = torch.stack(pairs.inputs["attention_mask"].chunk(2), 1).flatten(0, 1).bool()
    maps, facts = batch.explanations[method].flatten(0, 1), pairs.sentences.flatten(0, 1) >= 0
    prompts, scores, removable = ([x[r].tolist() for x, r in zip(xs, real, strict=True)] for xs in (ids, maps, facts))
    log_probability = continuation_log_probability(batch.module, pairs.answers.flatten()[:, None].tolist())
    found = continuation_faithfulness(log_probability, prompts, scores, removable)
    return {
        name: torch.from_numpy(found[name]).view(-1, 2).mean(1) for name in ("comprehensiveness", "sufficiency")
    }, {}


WORLD_PROTOCOLS = (
    BenchProtocol(DISCRIMINATION, (), _score_discrimination, targets=(OBJECTS,), world=True),
    BenchProtocol(TOP_WORD, (), _score_top_word, targets=(OBJECTS,), world=True),
    BenchProtocol(EVENT, (), _score_event, targets=(OBJECTS,), world=True),
    BenchProtocol(MARKED, (), _score_marked_removal, targets=(OBJECTS,), world=True),
    BenchProtocol(RIGHT_OBJECT, (), _score_right_object, targets=(OBJECTS,), world=True),
    BenchProtocol(SOURCE, (), _score_source, targets=(OBJECTS,), world=True),
    BenchProtocol(CONTINUATION, (), _score_continuation, targets=(OBJECTS,), world=True),
)
"""The protocols of pairs of the worlds."""
