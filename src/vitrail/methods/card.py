"""Cards of the methods: what each needs, how it behaves by measurement, and what it costs.

A card has the attributes of Saliency Cards (Boggust and others, 2023) that can be measured. ``cards.json`` beside this
file has the measurements of every method on three photograph models and on scenes; ``results/cards.py`` writes it from
committed results. The rules that rate them are here, and nowhere else: each measurement passes, is mixed or fails on
each model, and a line is rated with what all models agree on, or else as mixed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from vitrail.errors import OptionError
from vitrail.methods.registry import METHODS, READS, Method

PASS, MIXED, FAIL, UNRATED = "pass", "mixed", "fail", "–"
#: Ratings from best to worst, each with its colour; the word is always shown with it.
RATINGS = {PASS: "green", MIXED: "yellow", FAIL: "red"}
#: Models of the measurements, with their titles; photographs first.
MODELS = {"vit-t": "ViT-Tiny", "deit-t": "DeiT-Tiny", "dinov2-s": "DINOv2-S", "scenes": "scenes"}
PHOTOGRAPH_MODELS = ("vit-t", "deit-t", "dinov2-s")
#: Rank correlations above which a map hardly changes and below which it is another one, as in `Explanation.check`.
HARDLY_CHANGES, ANOTHER_MAP = 0.95, 0.5
#: Share of pairs of objects that a class-specific method must tell apart; one half is what a class-agnostic map has.
DISCRIMINATES, BY_CHANCE = 0.85, 0.5
#: Relative errors of a sum, and costs in forward and backward passes.
EXACT, ROUGH = 0.01, 0.1
FAST, SLOW = 5.0, 100.0


@dataclass(frozen=True)
class CardMeasurement:
    """A number of one line on one model.

    Attributes:
        value: The number.
        images: How many images it is the mean of.
        detail: The option of the lowest similarity; for a comparison with controls "better", "worse" or "".
        low: Lower end of its 95 % interval, where it has one.
        form: The form of the method that was measured, where it is not the default.
    """

    value: float
    images: int
    detail: str = ""
    low: float | None = None
    form: str = ""


@dataclass(frozen=True)
class CardRule:
    """How a line of a card is rated.

    Attributes:
        key: Its key in ``cards.json``.
        section: The attribute of the card it belongs to.
        title: Short name, with the direction that is better.
        measured: What is measured, in words.
        rate: From a measurement on one model to "pass", "mixed" or "fail".
        condition: When it passes, in words.
        reason: Why there.
        digits: Decimals shown.
        models: The models whose ratings count.
    """

    key: str
    section: str
    title: str
    measured: str
    rate: Callable[[CardMeasurement], str]
    condition: str
    reason: str
    digits: int = 2
    models: tuple[str, ...] = PHOTOGRAPH_MODELS


def _at_least(limit: float) -> Callable[[CardMeasurement], str]:
    return lambda measurement: PASS if measurement.value >= limit else FAIL


def _at_most(limit: float, mixed: float | None = None) -> Callable[[CardMeasurement], str]:
    def rate(measurement: CardMeasurement) -> str:
        if measurement.value <= limit:
            return PASS
        return MIXED if mixed is not None and measurement.value <= mixed else FAIL

    return rate


def _beats_controls(measurement: CardMeasurement) -> str:
    return PASS if measurement.detail == "better" else FAIL


def _discriminates(measurement: CardMeasurement) -> str:
    if measurement.value >= 100 * DISCRIMINATES:
        return PASS
    return MIXED if measurement.low is not None and measurement.low > 100 * BY_CHANCE else FAIL


_CONTROLS = "significantly better than the strongest control (random, centre, edges)"
_BLOB = "a map that a centred blob or an edge filter matches needs no model"
_RANDOM = "a map that stays the same does not depend on these parameters"
_SIMILAR = "rank correlation with the map"
#: The measured lines of a card, in order.
RULES = (
    CardRule(
        "determinism", "determinism", "another seed ↑", f"{_SIMILAR} of another seed, or of the same call",
        _at_least(HARDLY_CHANGES), f"at least {HARDLY_CHANGES}", "above it `Explanation.check` calls a map unchanged",
    ),
    CardRule(
        "options", "options", "other options, lowest ↑", f"{_SIMILAR} of other options, the lowest of all tried values",
        _at_least(ANOTHER_MAP), f"at least {ANOTHER_MAP}", "below it `Explanation.check` calls it another map",
    ),
    CardRule(
        "completeness", "input", "completeness, error ↓", "relative error of the map's sum, where a sum is defined",
        _at_most(EXACT, ROUGH), f"at most {EXACT:g}; mixed up to {ROUGH:g}",
        "values that miss the sum by more cannot be read as shares of it", 4, tuple(MODELS),
    ),
    CardRule(
        "deletion", "input", "deletion, % ↓", "area under the accuracy, most relevant pixels painted black first",
        _beats_controls, _CONTROLS, _BLOB, 1,
    ),
    CardRule(
        "insertion", "input", "insertion, % ↑", "area under the accuracy, least relevant pixels painted black first",
        _beats_controls, _CONTROLS, _BLOB, 1,
    ),
    CardRule(
        "srg", "input", "SRG, tokens ↑", "area under the class probability with tokens left out, least minus most "
        "relevant first", _beats_controls, _CONTROLS, _BLOB, 3,
    ),
    CardRule(
        "noise", "input", "noise on the image ↑", f"{_SIMILAR} of the image with small noise", _at_least(ANOTHER_MAP),
        f"at least {ANOTHER_MAP}", "below it `Explanation.check` calls a map unstable",
    ),
    CardRule(
        "pairs", "label", "two objects, % ↑", "class discrimination on scenes with two objects", _discriminates,
        f"at least {100 * DISCRIMINATES:g}; mixed if the interval is above {100 * BY_CHANCE:g}",
        f"{100 * BY_CHANCE:g} is what a class-agnostic map has", 1, ("scenes",),
    ),
    CardRule(
        "label", "label", "second class ↓", f"{_SIMILAR} of the second likeliest class", _at_most(HARDLY_CHANGES),
        f"at most {HARDLY_CHANGES}", "above it `Explanation.check` calls the maps the same",
    ),
    CardRule(
        "head", "model", "random head ↓", f"{_SIMILAR} after the head was randomised; class-specific methods only",
        _at_most(HARDLY_CHANGES), f"at most {HARDLY_CHANGES}", _RANDOM,
    ),
    CardRule(
        "last block", "model", "random last block ↓", f"{_SIMILAR} after head and last block were randomised",
        _at_most(HARDLY_CHANGES), f"at most {HARDLY_CHANGES}", _RANDOM,
    ),
    CardRule(
        "all", "model", "random model ↓", f"{_SIMILAR} after all parameters were randomised", _at_most(ANOTHER_MAP),
        f"at most {ANOTHER_MAP}", "a map of a random model must be another one; smoothness leaves some similarity",
    ),
    CardRule(
        "objects", "objects", "outlines, mIoU, % ↑", "mIoU on pets, map cut at its mean", _beats_controls, _CONTROLS,
        _BLOB, 1,
    ),
    CardRule(
        "texts", "texts", "comprehensiveness ↑",
        "loss of log-probability without the top words, Movie Reviews with a language model",
        _beats_controls, "interval above that of a random order of words", "a random order needs no model", 3,
        ("movies",),
    ),
    CardRule(
        "cost", "cost", "time over F+B ↓", "time over a forward and backward pass of the bare model, same images",
        _at_most(FAST, SLOW), f"at most {FAST:g}; mixed up to {SLOW:g}",
        "about 1 s, and 20 s, for one image on a CPU with ViT-B/16", 1,
    ),
)  # fmt: skip
#: The attributes in the order of a card; "needs" is not measured but follows from the registry.
SECTIONS = ("needs", *dict.fromkeys(rule.section for rule in RULES))
NEEDS = {
    PASS: "any image model",
    MIXED: "plain encoders only",
    FAIL: "an explainer trained for the model",
}


@dataclass(frozen=True)
class CardLine:
    """One line of a card.

    Attributes:
        section: The attribute it belongs to.
        title: What is measured.
        rating: "pass", "mixed", "fail", or "–" where nothing is rated.
        cells: By model, the number as it is shown.
        values: By model, the number.
        remark: Remark beside the numbers.
    """

    section: str
    title: str
    rating: str
    cells: Mapping[str, str]
    values: Mapping[str, float]
    remark: str = ""


@dataclass(frozen=True)
class MethodCard:
    """The card of a method.

    Attributes:
        method: The method.
        lines: Its lines by key of the rule; "needs" is the first.
    """

    method: Method
    lines: Mapping[str, CardLine]

    def rating(self, section: str) -> str:
        """The worst rating of an attribute's lines, or "–" where none is rated."""
        rated = [line.rating for line in self.lines.values() if line.section == section and line.rating in RATINGS]
        return max(rated, key=list(RATINGS).index, default=UNRATED)

    def mean(self, key: str) -> float | None:
        """Mean of a line over the photograph models, or over the models that the rule counts."""
        line, rule = self.lines.get(key), next(rule for rule in RULES if rule.key == key)
        if line is None:
            return None
        values = [line.values[model] for model in PHOTOGRAPH_MODELS if model in line.values]
        values = values or [line.values[model] for model in rule.models if model in line.values]
        return sum(values) / len(values) if values else None

    def to_dict(self) -> dict[str, Any]:
        """Ratings and numbers as JSON values."""
        return {
            key: {"rating": line.rating, "title": line.title, "values": dict(line.values), "remark": line.remark}
            for key, line in self.lines.items()
        }


def combined(ratings: list[str]) -> str:
    """The rating all models agree on, "mixed" where they do not, "–" without any.

    Example:
        >>> combined(["pass", "pass"]), combined(["pass", "fail"]), combined([])
        ('pass', 'mixed', '–')
    """
    return UNRATED if not ratings else ratings[0] if len(set(ratings)) == 1 else MIXED


@cache
def measurements() -> dict[str, dict[str, dict[str, CardMeasurement]]]:
    """The measurements of the package, by method, key of the rule and model."""
    text = resources.files("vitrail.methods").joinpath("cards.json").read_text(encoding="utf-8")
    stored = json.loads(text)["methods"]
    return {
        method: {
            key: {model: CardMeasurement(**fields) for model, fields in by_model.items()}
            for key, by_model in lines.items()
        }
        for method, lines in stored.items()
    }


def method_card(name: str) -> MethodCard:
    """The card of a method; lines without measurements are left out.

    Example:
        >>> card = method_card("leadlight")
        >>> card.lines["needs"].rating, card.rating("determinism")
        ('mixed', 'pass')
    """
    if name not in METHODS:
        raise OptionError(f"unknown method {name!r}: see `vitrail methods`")
    method = METHODS[name]
    lines = {"needs": _needs(method)}
    by_rule = measurements().get(name, {})
    for rule in RULES:
        if by_rule.get(rule.key):
            lines[rule.key] = _line(rule, by_rule[rule.key], method)
    return MethodCard(method, lines)


def _needs(method: Method) -> CardLine:
    rating = FAIL if method.check_weights is not None else MIXED if method.reason_against("Swin") else PASS
    reads = READS[method.applies.reads] if method.family != "control" else "nothing of the model"
    return CardLine("needs", f"{NEEDS[rating]}; reads {reads}", rating, {}, {})


def _line(rule: CardRule, by_model: Mapping[str, CardMeasurement], method: Method) -> CardLine:
    counted = [model for model in rule.models if model in by_model] or list(by_model)
    remark = ""
    if rule.key in ("deletion", "insertion", "srg", "objects"):
        if method.family == "control" and method.name != "inverted":
            counted, remark = [], "is a control"
        counted = [model for model in counted if model in PHOTOGRAPH_MODELS]
    if rule.key == "head" and not method.class_specific:
        counted, remark = [], "does not read the head"
    if rule.key == "options":
        names = dict.fromkeys(by_model[model].detail for model in counted)
        remark = "lowest: " + ", ".join(f"{method.name}:{name}" for name in names)
    rating = combined([rule.rate(by_model[model]) for model in counted])
    if rule.key == "texts":
        remark = ", ".join(shown_number(rule, one.value) for one in by_model.values())
    if forms := dict.fromkeys(one.form for one in by_model.values() if one.form):
        remark = "; ".join(filter(None, (remark, f"of {', '.join(forms)}")))
    cells = {model: shown_number(rule, one.value) for model, one in by_model.items()}
    title = "same call ↑" if rule.key == "determinism" and "seed" not in method.options else rule.title
    return CardLine(rule.section, title, rating, cells, {m: one.value for m, one in by_model.items()}, remark)


def shown_number(rule: CardRule, value: float) -> str:
    """A number with the decimals of its line.

    Example:
        >>> shown_number(RULES[0], -0.001), shown_number(RULES[0], -0.25)
        ('0.00', '−0.25')
    """
    return f"{round(value, rule.digits) + 0.0:.{rule.digits}f}".replace("-", "−")
