"""Presets: the perturbation protocols of the papers as data (levels, fill, measured quantity, area rule).

Two numbers can be compared only if all four agree, so a number is always printed with its label. Where a paper leaves a
point open, the preset states our choice in ``choices``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from vitrail.errors import OptionError
from vitrail.scores.curves import find_area
from vitrail.scores.fills import TOKENS
from vitrail.scores.ranks import RemovalOrder

#: Class that a map explains: the predicted class or the label.
MapTarget = Literal["predicted", "label"]
#: Pixels of the images that published step sizes refer to. Other image sizes use the same share.
REFERENCE_PIXELS = 224 * 224
#: Quantities measured at each level, with their titles.
QUANTITIES = {
    "accuracy": "top-1 accuracy against the label",
    "agreement": "share that keeps the unperturbed prediction",
    "predicted": "probability of the predicted class",
    "label": "probability of the label",
    "explained": "probability of the explained class",
}
#: Further scores of the same curves: name, direction and description.
EXTRAS = {
    "aopc": ("AOPC", "up", "mean drop of the predicted class's probability"),
    "lodds": ("LOdds", "down", "mean change of the predicted class's log-probability"),
    "srg": ("SRG", "up", "area of LeRF minus area of MoRF"),
    "abpc": ("ABPC", "up", "area of LeRF minus area of MoRF"),
}
_DIRECTIONS = {"positive": "down", "deletion": "down", "negative": "up", "insertion": "up"}


@dataclass(frozen=True)
class LevelGrid:
    """Number of pixels removed at each level.

    Attributes:
        percents: Levels as integer percentages of the pixels; counts are rounded down.
        step: Alternatively, pixels per step of a 224×224 image (the same share of other sizes). The last step may be
            shorter.
        ends: Whether a grid of steps includes the unperturbed and the empty image.

    Example:
        >>> steps = LevelGrid(step=1792).counts(50176)
        >>> LevelGrid((0, 10, 90)).counts(50176), steps[:3], len(steps)
        ((0, 5017, 45158), (0, 1792, 3584), 29)
    """

    percents: tuple[int, ...] = ()
    step: int = 0
    ends: bool = True

    def counts(self, units: int, tokens: bool = False) -> tuple[int, ...]:
        """Number removed at each level, of ``units`` pixels (rounded down) or tokens (rounded to the nearest)."""
        if self.percents:
            return tuple(round(units * p / 100) if tokens else units * p // 100 for p in self.percents)
        step = max(1, round(units * self.step / REFERENCE_PIXELS))
        inner = tuple(range(step, units, step))
        return (0, *inner, units) if self.ends else inner

    def shares(self, units: int) -> tuple[float, ...]:
        """Levels as shares of the pixels: the x axis of the curve."""
        return tuple(p / 100 for p in self.percents) or tuple(k / units for k in self.counts(units))

    def __str__(self) -> str:
        if not self.percents:
            return f"every {self.step} px" + (", both ends" if self.ends else ", ends left out")
        zero_twice = self.percents[:2] == (0, 0)
        rest = self.percents[1:] if zero_twice else self.percents
        return f"{'0 %, ' if zero_twice else ''}{rest[0]}–{rest[-1]} % by {rest[2] - rest[1]} ({len(self.percents)})"


@dataclass(frozen=True)
class Curve:
    """A perturbation curve of a protocol.

    Attributes:
        name: Name in the paper: positive, negative, deletion or insertion.
        order: "morf" removes the most relevant pixels first, "lerf" the least relevant first.
        fill: Values of removed pixels; a key of ``FILLS``, or "tokens" for token dropping.
        grid: Levels. Those of an insertion count inserted pixels, so an insertion is a LeRF curve in reverse.
    """

    name: str
    order: RemovalOrder
    fill: str
    grid: LevelGrid

    @property
    def score_name(self) -> str:
        """Name of its area among the scores, such as "insertion(blur)"."""
        return f"{self.name}({self.fill})"

    @property
    def direction(self) -> str:
        """Direction in which the area is better: "up" or "down"."""
        return _DIRECTIONS[self.name]

    def removed(self, units: int) -> tuple[int, ...]:
        """Number of pixels or tokens removed at each level, in the order of the curve.

        Example:
            >>> Curve("insertion", "lerf", "blur", LevelGrid(step=25088)).removed(50176)
            (50176, 25088, 0)
        """
        counts = self.grid.counts(units, self.fill == TOKENS)
        return tuple(units - k for k in counts) if self.name == "insertion" else counts


@dataclass(frozen=True)
class Preset:
    """A perturbation protocol.

    Attributes:
        name: Key in plans and records.
        source: Paper or code it comes from.
        curves: Perturbation curves.
        quantity: Quantity measured at each level; a key of ``QUANTITIES``.
        area: Area rule; a key of ``AREAS``.
        explains: Targets whose maps it is run for.
        extras: Further scores of the same curves; keys of ``EXTRAS``.
        choices: Fields that the source leaves open, each with our choice and the reason.
    """

    name: str
    source: str
    curves: tuple[Curve, ...]
    quantity: str
    area: str
    explains: tuple[MapTarget, ...] = ("predicted",)
    extras: tuple[str, ...] = ()
    choices: Mapping[str, str] = field(default_factory=dict)

    @property
    def fills(self) -> tuple[str, ...]:
        """Fills of its curves, without duplicates."""
        return tuple(dict.fromkeys(curve.fill for curve in self.curves))

    @property
    def scores(self) -> dict[str, str]:
        """Names of its scores, each with the direction that is better, "up" or "down".

        Example:
            >>> PRESETS["agcam"].scores
            {'positive(mean)': 'down', 'negative(mean)': 'up', 'abpc(mean)': 'up'}
        """
        areas = {curve.score_name: curve.direction for curve in self.curves}
        return areas | {f"{extra}({self.fills[0]})": EXTRAS[extra][1] for extra in self.extras}

    def label(self, score: str) -> str:
        """Label to print with a score: preset, fill, quantity and area rule.

        Example:
            >>> PRESETS["rise"].label("insertion(blur)")
            'rise insertion, fill blur, probability of the predicted class, trapezoid, range scaled to 1'
        """
        if score not in self.scores:
            raise OptionError(f"{self.name} has no score {score!r}: choose from {', '.join(self.scores)}")
        name, fill = score.removesuffix(")").split("(")
        rule, title = find_area(self.area).title, QUANTITIES[self.quantity]
        if name in ("aopc", "lodds"):
            title, rule = EXTRAS[name][2], "plain mean over the levels"
        elif name in EXTRAS:
            title = f"{title}, {EXTRAS[name][2]}"
        return f"{self.name} {EXTRAS[name][0] if name in EXTRAS else name}, fill {fill}, {title}, {rule}"

    def with_fill(self, fill: str) -> Preset:
        """Copy of the preset with another fill for all curves, named ``name-fill``; "tokens" drops tokens instead.

        Example:
            >>> PRESETS["chefer21"].with_fill("mean").name
            'chefer21-mean'
        """
        curves = tuple(replace(curve, fill=fill) for curve in self.curves)
        return replace(self, name=f"{self.name}-{fill}", curves=curves, choices={**self.choices, "fill": "requested"})


def _positive_negative(fill: str, grid: LevelGrid, lerf: LevelGrid | None = None) -> tuple[Curve, ...]:
    return Curve("positive", "morf", fill, grid), Curve("negative", "lerf", fill, lerf or grid)


def _deletion_insertion(step: int, *insertion_fills: str) -> tuple[Curve, ...]:
    grid = LevelGrid(step=step)
    insertions = (Curve("insertion", "lerf", fill, grid) for fill in insertion_fills)
    return (Curve("deletion", "morf", "mean", grid), *insertions)


_TO_90_BY_10, _TO_100_BY_10 = LevelGrid(tuple(range(0, 91, 10))), LevelGrid(tuple(range(0, 101, 10)))
_TO_100_BY_5 = LevelGrid(tuple(range(0, 101, 5)))
_BOTH_TARGETS: tuple[MapTarget, ...] = ("predicted", "label")
_CHEFER = Preset(
    "chefer21", "Chefer and others 2021, code", _positive_negative("black", _TO_90_BY_10), "accuracy", "trapezoid×100",
    _BOTH_TARGETS,
)  # fmt: skip
_VTRANM = Preset(
    "vtranm", "VTranM", _positive_negative("black", _TO_100_BY_5), "accuracy", "unit×100", _BOTH_TARGETS,
    ("aopc", "lodds"),
    {"fill": "not stated; black here, mean colour in vtranm-mean", "levels": "rounding not stated; down",
     "area": "not stated for the accuracy; range scaled to 1"},
)  # fmt: skip
_RISE = Preset(
    "rise", "RISE, code, batch evaluation", _deletion_insertion(1792, "blur"), "predicted", "unit",
    choices={"levels": "steps in pixels are scaled to other image sizes"},
)  # fmt: skip

PRESETS: dict[str, Preset] = {
    preset.name: preset
    for preset in (
        _CHEFER,
        _VTRANM,
        replace(
            _VTRANM.with_fill("mean"),
            choices={**_VTRANM.choices, "fill": "not stated; mean colour here, black in vtranm"},
        ),
        replace(
            _CHEFER, name="gradtoken", source="GradToken",
            choices={"levels": "steps of 10 % stated, first and last level not; as chefer21, whose rows it quotes",
                     "fill": "as chefer21, which it states to follow", "area": "as chefer21"},
        ),
        _RISE,
        replace(_RISE, name="rise-224", source="RISE, code, single images", curves=_deletion_insertion(224, "blur")),
        Preset(
            "vitcx", "ViT-CX", _deletion_insertion(1792, "mean", "blur"), "explained", "unit",
            choices={"levels": "not stated; RISE's batch step", "fill": "not stated; mean colour for deletion, mean "
                     "colour and blur for insertion", "quantity": "class not stated; the predicted one",
                     "area": "not stated; as RISE, which it cites"},
        ),
        Preset(
            "agcam", "AGCAM, code", _positive_negative("mean", _TO_100_BY_10), "label", "mean", _BOTH_TARGETS,
            ("abpc",),
        ),
        replace(_CHEFER, name="bth", source="transformerinterp, code", area="forced×100"),
        Preset(
            "m4", "InterpretDL (M4), code",
            _positive_negative("grey", _TO_100_BY_5, LevelGrid((0, *range(0, 100, 5)))), "predicted", "mean",
            extras=("abpc",),
            choices={"levels": "percentiles in the source, which remove tied pixels together; ranks here"},
        ),
        Preset(
            "srg", "Blücher and others 2024", _positive_negative("black", _TO_100_BY_5), "explained", "unit",
            _BOTH_TARGETS, ("srg",),
            {"levels": "5 % steps, as vtranm", "fill": "black, as vtranm, so that forward passes are shared"},
        ),
        Preset(
            "latec", "LATEC, code",
            (Curve("deletion", "morf", "mean", LevelGrid(step=50, ends=False)),
             Curve("insertion", "lerf", "blur15", LevelGrid(step=50, ends=False))), "predicted", "count",
            choices={"levels": "steps in pixels are scaled to other image sizes", "fill": "padding of the blur not "
                     "stated; reflection", "quantity": "class not stated; the predicted one"},
        ),
    )
}  # fmt: skip


def find_presets(presets: str | Preset | Iterable[str | Preset]) -> tuple[Preset, ...]:
    """Look up presets by name; ``name-fill`` is a preset with another fill, and `Preset` objects are kept.

    Example:
        >>> [preset.name for preset in find_presets(["rise", "chefer21-tokens"])]
        ['rise', 'chefer21-tokens']
    """
    given = [presets] if isinstance(presets, str | Preset) else list(presets)
    return tuple(preset if isinstance(preset, Preset) else _find_preset(preset) for preset in given)


def _find_preset(name: str) -> Preset:
    if name in PRESETS:
        return PRESETS[name]
    base, _, fill = name.rpartition("-")
    if base in PRESETS:
        return PRESETS[base].with_fill(fill)
    raise OptionError(f"unknown preset {name!r}: choose from {', '.join(PRESETS)}")
