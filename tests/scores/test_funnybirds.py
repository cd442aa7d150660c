"""FunnyBirds: a planted model whose answer depends on the parts in a known way, and slow copies of the definitions."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from vitrail.data.funnybirds.birds import MAX_OBJECTS, PARTS, VARIANTS, draw_bird_classes, part_subsets
from vitrail.data.funnybirds.labels import FIRST_OBJECT, LABELS
from vitrail.errors import InputError
from vitrail.scores.funnybirds import (
    PART_THRESHOLDS,
    BirdResponses,
    PartImportance,
    measure_parts,
    score_bird_maps,
    score_bird_model,
    summarise_birds,
)

CLASSES = draw_bird_classes(50, seed=0)
COUNT, OBJECTS = 20, 3
WEIGHTS = torch.tensor([3.0, 2.0, 4.0, 6.0, 5.0])
#: One more logit, which is the largest where no part is left.
EMPTY = len(CLASSES)


def agreement(label: int, other: int) -> torch.Tensor:
    """Which parts of a bird are those of a class."""
    return torch.tensor([CLASSES[label][part] == CLASSES[other][part] for part in PARTS])


def planted_logits(label: int, kept: tuple[str, ...]) -> torch.Tensor:
    """The logit of a class is the weight of its parts that are present; that of no part is 0.5."""
    present = torch.tensor([part in kept for part in PARTS])
    own = [(WEIGHTS * (present & agreement(label, other))).sum() for other in range(len(CLASSES))]
    return torch.stack([*own, torch.tensor(0.5)])


def planted_responses() -> BirdResponses:
    labels = torch.arange(COUNT) * 2 + 1
    subsets = torch.stack([torch.stack([planted_logits(c, kept) for kept in part_subsets()]) for c in labels.tolist()])
    objects = torch.full((COUNT, MAX_OBJECTS, EMPTY + 1), math.nan)
    objects[:, :OBJECTS] = subsets[:, -1:]
    return BirdResponses(CLASSES, labels, subsets, objects)


def ideal_importance(responses: BirdResponses) -> PartImportance:
    """The weight of each part that the bird shares with the explained class; nothing in the background."""
    parts = torch.stack([
        torch.stack([WEIGHTS * agreement(label, other) for other in targets])
        for label, targets in zip(responses.labels.tolist(), responses.targets.tolist(), strict=True)
    ])  # fmt: skip
    return PartImportance(parts, torch.zeros(COUNT, 4, MAX_OBJECTS), parts.sum(2))


def random_responses(seed: int) -> BirdResponses:
    """A model whose answers are random, so that every condition of the protocols occurs."""
    generator = torch.Generator().manual_seed(seed)
    responses = planted_responses()
    noisy = responses.subsets + 3 * torch.randn(responses.subsets.shape, generator=generator)
    objects = noisy[:, -1:] + 0.3 * torch.randn(responses.objects.shape, generator=generator)
    return BirdResponses(CLASSES, responses.labels, noisy, objects.where(~responses.objects.isnan(), math.nan))


def random_importance(seed: int) -> PartImportance:
    generator = torch.Generator().manual_seed(seed)
    parts, objects = (torch.randn(COUNT, 4, n, generator=generator) + 0.4 for n in (len(PARTS), MAX_OBJECTS))
    return PartImportance(parts, objects, parts.sum(2) + 1.5)


def test_ideal_maps_of_a_planted_model_score_one() -> None:
    responses = planted_responses()
    found = summarise_birds(score_bird_maps(responses, ideal_importance(responses)))
    threshold = found.pop("threshold")
    assert found == pytest.approx(dict.fromkeys(found, 1.0))
    assert threshold == pytest.approx(PART_THRESHOLDS[0].item())
    model = score_bird_model(responses)
    assert model["accuracy"].mean() == 1
    assert model["background_independence"].mean() == 1
    assert model["objects"].tolist() == [OBJECTS] * COUNT


def test_maps_of_one_background_object_score_what_follows_from_the_definitions() -> None:
    responses = planted_responses()
    objects = torch.zeros(COUNT, 4, MAX_OBJECTS)
    objects[:, :, 1] = 1
    wrong = PartImportance(torch.zeros(COUNT, 4, len(PARTS)), objects, torch.ones(COUNT, 4))
    values = score_bird_maps(responses, wrong)
    for name in ("controlled_data_check", "preservation_check", "deletion_check", "target_sensitivity"):
        assert values[name].nanmean() == 0, name
    # Three objects have no influence, and one of them is marked; every part has influence.
    assert values["distractibility"].unique().tolist() == pytest.approx([1 - 1 / OBJECTS])
    assert values["single_deletion"].isnan().all()  # the importance of all parts is the same


def test_inverted_maps_and_maps_of_one_class() -> None:
    responses = planted_responses()
    ideal = ideal_importance(responses)
    inverted = PartImportance(7 - ideal.parts, ideal.objects, (7 - ideal.parts).sum(2))
    values = score_bird_maps(responses, inverted)
    assert values["single_deletion"].unique().tolist() == pytest.approx([0.0])
    assert values["target_sensitivity"].nanmean() == 0
    # A map that is the same for every class is never more important to one class than to the other.
    same = PartImportance(*(torch.ones_like(v) * v[:, :1] for v in ideal))
    assert score_bird_maps(responses, same)["target_sensitivity"].nanmean() == 0


def slow_scores(responses: BirdResponses, importance: PartImportance, image: int, threshold: float) -> dict[str, float]:
    """The protocols for one image and threshold, with sets and dictionaries, from their definitions."""
    label = int(responses.labels[image])
    logits = {frozenset(kept): responses.subsets[image, i] for i, kept in enumerate(part_subsets())}
    full = logits[frozenset(PARTS)]
    own, predicted = (
        {part for p, part in enumerate(PARTS) if importance.parts[image, k, p] > threshold * importance.total[image, k]}
        for k in (0, 1)
    )
    marked = {i for i in range(MAX_OBJECTS) if importance.objects[image, 0, i] > threshold * importance.total[image, 0]}
    found: dict[str, float] = dict.fromkeys(
        ("controlled_data_check", "distractibility", "target_sensitivity"), math.nan
    )

    if full.argmax() == label:
        unique = []
        for size in range(1, 6):
            for subset in itertools.combinations(PARTS, size):
                same = [o for o in CLASSES if all(o[p] == CLASSES[label][p] for p in subset)]
                if len(same) == 1:
                    unique.append(set(subset))
        minimal = [s for s in unique if not any(other < s for other in unique)]
        found["controlled_data_check"] = max(len(s & own) / len(s) for s in minimal)

    found["preservation_check"] = float(logits[frozenset(predicted)].argmax() == full.argmax())
    found["deletion_check"] = float(logits[frozenset(set(PARTS) - predicted)].argmax() != full.argmax())

    before = full[label].item()
    after: dict[str | int, float] = {part: logits[frozenset(set(PARTS) - {part})][label].item() for part in PARTS}
    after |= {i: responses.objects[image, i, label].item() for i in range(OBJECTS)}
    irrelevant = {k for k, v in after.items() if abs(before - v) < abs(0.05 * before) or v > before}
    if irrelevant:
        found["distractibility"] = 1 - len((own | marked) & irrelevant) / len(irrelevant)

    def ranks(values: list[float]) -> list[float]:
        return [sum(v < w for v in values) + (sum(v == w for v in values) - 1) / 2 for w in values]

    x, y = ranks([before - after[part] for part in PARTS]), ranks(importance.parts[image, 0].tolist())
    spread = sum((a - 2) ** 2 for a in x) * sum((b - 2) ** 2 for b in y)
    correlation = sum((a - 2) * (b - 2) for a, b in zip(x, y, strict=True)) / math.sqrt(spread) if spread else math.nan
    found["single_deletion"] = correlation / 2 + 0.5

    shared = [{p for p in PARTS if o[p] == CLASSES[label][p]} for o in CLASSES]
    pairs = itertools.combinations([c for c, parts in enumerate(shared) if len(parts) == 2], 2)
    first, second = next((a, b) for a, b in pairs if not shared[a] & shared[b])
    no_first, no_second = (logits[frozenset(set(PARTS) - shared[c])] for c in (first, second))
    if no_first[first] < no_second[first] and no_second[second] < no_first[second]:
        sums = [[sum(importance.parts[image, k, PARTS.index(p)].item() for p in shared[c]) for k in (2, 3)]
                for c in (first, second)]  # fmt: skip
        found["target_sensitivity"] = ((sums[0][0] > sums[0][1]) + (sums[1][0] < sums[1][1])) / 2
    return found


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_values_are_those_of_the_definitions(seed: int) -> None:
    responses, importance = random_responses(seed), random_importance(seed)
    thresholds = PART_THRESHOLDS[[0, 20, 60]]
    values = score_bird_maps(responses, importance, thresholds)
    for image, t in itertools.product(range(COUNT), range(len(thresholds))):
        slow = slow_scores(responses, importance, image, thresholds[t].item())
        fast = {k: v[image, t].item() if v.ndim == 2 else v[image].item() for k, v in values.items()}
        assert fast == pytest.approx(slow, nan_ok=True), (image, t)
    # The random model leaves some images out of each protocol that can leave images out.
    for name in ("controlled_data_check", "target_sensitivity"):
        assert 0 < values[name].isnan().double().mean() < 1, name


def test_the_best_threshold_is_chosen_and_the_dimensions_are_those_of_the_paper() -> None:
    curves = {"controlled_data_check": [1.0, 0.9, 0.0], "preservation_check": [1.0, 0.8, 0.0],
              "deletion_check": [1.0, 0.4, 0.0], "distractibility": [0.0, 0.6, 1.0]}  # fmt: skip
    values = {name: torch.tensor([curve, [math.nan] * 3]) for name, curve in curves.items()}
    values |= {"single_deletion": torch.tensor([0.7, 0.5]), "target_sensitivity": torch.tensor([math.nan, 0.5])}
    found = summarise_birds(values, torch.tensor([0.1, 0.2, 0.3], dtype=torch.float64))
    assert found["threshold"] == pytest.approx(0.2)
    assert found["completeness"] == pytest.approx(((0.9 + 0.8 + 0.4) / 3 + 0.6) / 2)
    assert found["correctness"] == pytest.approx(0.6)
    assert found["contrastivity"] == pytest.approx(0.5)
    assert found["mean"] == pytest.approx((0.65 + 0.6 + 0.5) / 3)


def test_background_objects_that_matter_lower_background_independence() -> None:
    responses = planted_responses()
    label = int(responses.labels[0])
    responses.objects[0, 0, label] *= 0.96  # a drop of 4 %
    responses.objects[0, 1, label] *= 0.94  # a drop of 6 %
    responses.objects[0, 2, label] *= 1.2  # the logit rises
    assert score_bird_model(responses)["background_independence"][:2].tolist() == pytest.approx([2 / 3, 1])


def test_importance_is_the_sum_in_enlarged_parts() -> None:
    torch.manual_seed(0)
    labels = torch.zeros(1, 20, 20, dtype=torch.uint8)
    labels[0, 3:5, 3:5], labels[0, 10, 10], labels[0, 12, 15] = LABELS["eye01"], LABELS["eye02"], FIRST_OBJECT + 3
    maps = torch.randn(1, 2, 20, 20, dtype=torch.float64)
    found = measure_parts(maps, labels)
    eye = maps[:, :, 1:7, 1:7].sum((2, 3)) + maps[:, :, 8:13, 8:13].sum((2, 3))
    torch.testing.assert_close(found.parts[:, :, PARTS.index("eye")], eye)
    assert not found.parts[:, :, PARTS.index("beak")].any()
    torch.testing.assert_close(found.objects[:, :, 3], maps[:, :, 10:15, 13:18].sum((2, 3)))
    torch.testing.assert_close(found.total, maps.sum((2, 3)))
    with pytest.raises(InputError, match="differ in number or size"):
        measure_parts(maps[:, :, :10], labels)


def test_every_class_has_two_contrasting_classes() -> None:
    assert all(contrast is not None for contrast in planted_responses().contrasts)
    assert len({tuple(own.values()) for own in CLASSES}) == 50
    assert all(own[part] < len(VARIANTS[part]) for own in CLASSES for part in PARTS)
