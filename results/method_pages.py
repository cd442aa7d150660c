"""Generated parts of the documentation: the card of each method page, and the tables of the list of methods."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from vitrail.methods.card import (
    MODELS,
    NEEDS,
    PASS,
    RATINGS,
    RULES,
    UNRATED,
    CardLine,
    MethodCard,
    measurements,
    method_card,
    shown_number,
)
from vitrail.methods.model_kinds import MODEL_KINDS
from vitrail.methods.registry import METHODS

#: The table in which all methods were scored on the same images, and its scores by the key of a card's line.
SAME_IMAGES = Path(__file__).resolve().parent / "three_models.csv"
SCORES = {"srg": "srg(tokens)", "objects": "miou"}
#: Scenes on which most methods were compared by class discrimination; others have fewer and are not ranked by it.
PAIRS = 500
#: The families in the order of the tables.
FAMILIES = ("attention", "gradient", "path", "relevance", "input", "perturbation", "trained", "control")
#: Columns of the table of cards: heading, attribute or key of the line whose rating is shown, key of the number.
COLUMNS = (
    ("needs", "needs", ""),
    ("seed ↑", "determinism", "determinism"),
    ("options ↑", "options", "options"),
    ("SRG ↑", "srg", "srg"),
    ("noise ↑", "noise", "noise"),
    ("two objects ↑", "pairs", "pairs"),
    ("random model ↓", "model", "all"),
    ("mIoU ↑", "objects", "objects"),
    ("time ↓", "cost", "cost"),
)


@dataclass(frozen=True)
class Situation:
    """A situation in which a reader has to choose a method.

    Attributes:
        title: The situation.
        fits: Whether a method is considered.
        best: Sort key of the methods, the lowest is the first.
        keys: Lines whose numbers are shown.
        why: The criterion, in words.
    """

    title: str
    fits: Callable[[MethodCard], bool]
    best: Callable[[MethodCard], float]
    keys: tuple[str, ...]
    why: str


@cache
def same_images(key: str) -> dict[str, float]:
    """Mean over three models by method, of the table in which all methods have the same images; {} for other lines."""
    score = SCORES.get(key)
    found: dict[str, list[float]] = {}
    with SAME_IMAGES.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            if row["score"] == score:
                found.setdefault(row["method"], []).append(float(row["value"]))
    return {name: sum(own) / len(own) for name, own in found.items()}


def _mean(card: MethodCard, key: str) -> float | None:
    """Mean of a line over the models; of scores on photographs that of the same images for all methods."""
    return same_images(key).get(_form(card, key)) if key in SCORES else card.mean(key)


def _highest(key: str) -> Callable[[MethodCard], float]:
    def order(card: MethodCard) -> float:
        value = _mean(card, key)
        return math.inf if value is None else -value

    return order


def _passes(card: MethodCard, *keys: str) -> bool:
    return all(key in card.lines and card.lines[key].rating == PASS for key in keys)


def _on_all_scenes(card: MethodCard) -> bool:
    return measurements()[card.method.name]["pairs"]["scenes"].images == PAIRS


def _applies(kind: str) -> Callable[[MethodCard], bool]:
    return lambda card: card.method.reason_against(kind) is None and card.method.class_specific


SITUATIONS = (
    Situation(
        "a fast first look", lambda card: _passes(card, "cost", "srg", "noise"), _highest("srg"), ("srg", "cost"),
        "fast, better than controls on all three models, stable; by SRG",
    ),
    Situation(
        "the most faithful order of patches", lambda card: _passes(card, "srg"), _highest("srg"), ("srg", "cost"),
        "by SRG, whatever the cost",
    ),
    Situation(
        "two classes in one image", lambda card: _passes(card, "pairs", "label", "srg") and _on_all_scenes(card),
        _highest("pairs"), ("pairs", "srg", "cost"), f"better than controls; by class discrimination on {PAIRS} scenes",
    ),
    Situation(
        "outlines of objects", lambda card: "objects" in card.lines and card.method.class_specific,
        _highest("objects"), ("objects", "cost"), "by mIoU on pets",
    ),
    Situation(
        "values that sum to the score: Shapley values, integrated gradients", lambda card: "completeness" in card.lines,
        _highest("srg"), ("completeness", "srg", "cost"), "methods whose values have a defined sum; by SRG",
    ),
    Situation(
        "texts", lambda card: "texts" in card.lines and card.method.class_specific, _highest("texts"), ("texts",),
        "by comprehensiveness on Movie Reviews with a language model",
    ),
    Situation(
        "Swin and pyramids", _applies("Swin"), _highest("srg"), ("srg", "cost"),
        "apply without attention between all patches; by SRG on the plain models, of `shapley` with a gradient map",
    ),
    Situation(
        "no access to attention or gradients",
        lambda card: card.method.family == "perturbation" and card.method.applies.reads == "outputs",
        _highest("srg"), ("srg", "cost"), "read the model's outputs only; by SRG, of `shapley` with a gradient map",
    ),
)  # fmt: skip
#: Names of the lines in the recommendations.
SHORT = {"srg": "SRG", "cost": "time", "pairs": "pairs", "objects": "mIoU", "completeness": "error", "texts": "compr."}
MOST = 3


def shown_rating(rating: str) -> str:
    """A rating in Markdown: a word with a colour."""
    return f'<span class="rating {rating}">{rating}</span>' if rating in RATINGS else UNRATED


def card_table(card: MethodCard) -> str:
    """The card of a method as a Markdown table."""
    rows = [f"| attribute | rating | {' | '.join(MODELS.values())} |", "|---|---" + "|---:" * len(MODELS) + "|"]
    for line in card.lines.values():
        cells = " | ".join(line.cells.get(model, "") for model in MODELS)
        rows.append(f"| **{line.section}** · {_title(line)} | {shown_rating(line.rating)} | {cells} |")
    return "\n".join(rows)


def _title(line: CardLine) -> str:
    return f"{line.title} ({line.remark})" if line.remark else line.title


def cards_table() -> str:
    """All cards as a Markdown table, one row for each method, by family."""
    headings = ["method", *(heading for heading, *_ in COLUMNS)]
    rows = [f"| {' | '.join(headings)} |", "|---" + "|---:" * len(COLUMNS) + "|"]
    for method in sorted(METHODS.values(), key=lambda m: FAMILIES.index(m.family)):
        card = method_card(method.name)
        cells = [_cell(card, rated, key) for _, rated, key in COLUMNS]
        rows.append(f"| [`{method.name}`]({method.name}.md)<br>{method.family} | {' | '.join(cells)} |")
    return "\n".join(rows)


def _cell(card: MethodCard, rated: str, key: str) -> str:
    line = card.lines.get(rated)
    rating = line.rating if line is not None else card.rating(rated)
    number = card.mean(key) if key else None
    shown = [shown_rating(rating)] if rating in RATINGS else []
    return "<br>".join([*shown, *([] if number is None else [_number(key, number)])]) or UNRATED


def _number(key: str, value: float) -> str:
    return shown_number(next(rule for rule in RULES if rule.key == key), value)


def recommendations() -> str:
    """The methods to use by situation, as a Markdown table: the first few that fit, with their numbers."""
    rows = ["| situation | use | chosen |", "|---|---|---|"]
    cards = [method_card(name) for name, method in METHODS.items() if method.family != "control"]
    for situation in SITUATIONS:
        fitting = sorted((card for card in cards if situation.fits(card)), key=situation.best)[:MOST]
        used = "; ".join(
            f"[`{_form(card, situation.keys[0])}`]({card.method.name}.md) ({_numbers(card, situation.keys)})"
            for card in fitting
        )
        rows.append(f"| {situation.title} | {used or UNRATED} | {situation.why} |")
    return "\n".join(rows)


def _form(card: MethodCard, key: str) -> str:
    """The form whose numbers are shown: the method's default, or the one that was measured."""
    measured = measurements()[card.method.name].get(key, {}).values()
    return next((one.form for one in measured if one.form), card.method.name)


def _numbers(card: MethodCard, keys: Iterable[str]) -> str:
    values = ((key, _mean(card, key)) for key in keys)
    return ", ".join(f"{SHORT[key]} {_number(key, value)}" for key, value in values if value is not None)


def rules_table() -> str:
    """The rules of the ratings, as a Markdown table."""
    needs = "; ".join(f"{rating}: {meaning}" for rating, meaning in NEEDS.items())
    rows = ["| line | what it is | passes | reason |", "|---|---|---|---|"]
    rows.append(f"| **needs** | what the method reads | {needs} | [which models](#which-method-on-which-model) |")
    rows += [
        f"| **{rule.section}** · {rule.title} | {rule.measured} | {rule.condition} | {rule.reason} |" for rule in RULES
    ]
    return "\n".join(rows)


def applicability() -> str:
    """Methods × kinds of models in Markdown, by family, with the reasons for every "–" below."""
    methods = sorted(METHODS.values(), key=lambda m: FAMILIES.index(m.family))
    rows = [f"| method | {' | '.join(MODEL_KINDS)} |", "|---" * (1 + len(MODEL_KINDS)) + "|"]
    against: dict[tuple[str, str], list[str]] = {}
    for method in methods:
        reasons = [method.reason_against(kind) for kind in MODEL_KINDS]
        rows.append(f"| `{method.name}` | {' | '.join('–' if reason else 'yes' for reason in reasons)} |")
        for kind, reason in zip(MODEL_KINDS, reasons, strict=True):
            if reason:
                against.setdefault((kind, reason), []).append(f"`{method.name}`")
    order = sorted(against, key=lambda pair: MODEL_KINDS.index(pair[0]))
    listed = [f"- **{kind}**: {reason}. {', '.join(against[kind, reason])}" for kind, reason in order]
    return "\n".join([*rows, "", *listed])


def replaced(page: str, mark: str, content: str) -> str:
    """A page with the text between ``<!-- mark -->`` and ``<!-- /mark -->`` replaced."""
    first, last = f"<!-- {mark} -->", f"<!-- /{mark} -->"
    before, begun, rest = page.partition(first)
    _, ended, after = rest.partition(last)
    if not (begun and ended):
        raise ValueError(f"the page has no {first} … {last}")
    return f"{before}{first}\n\n{content}\n\n{last}{after}"


def renewed_page(page: str, name: str) -> str:
    """The page of a method with an updated card."""
    return replaced(page, "card", card_table(method_card(name)))


def renewed_index(page: str) -> str:
    """The list of methods with updated recommendations, cards, rules and applicability."""
    page = replaced(replaced(page, "recommendations", recommendations()), "applicability", applicability())
    return replaced(replaced(page, "cards", cards_table()), "card rules", rules_table())
