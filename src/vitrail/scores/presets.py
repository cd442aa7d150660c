"""The perturbation protocols of the papers as data: what is removed, filled with what, scored how, and which area.

Two numbers can be compared only if all of that agrees, so a number is printed with its label, never alone. Where a
paper leaves a point open, the preset fills it in and says so in ``choices``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from vitrail.errors import OptionError
from vitrail.scores.curves import find_area
from vitrail.scores.fills import TOKENS
from vitrail.scores.ranks import Order

Mode = Literal["predicted", "label"]
#: Pixels of the pictures that steps in pixels were stated for; other sizes take the same share.
REFERENCE = 224 * 224
QUANTITIES = {
    "accuracy": "top-1 accuracy against the label",
    "agreement": "share that keeps the unperturbed prediction",
    "predicted": "probability of the predicted class",
    "label": "probability of the label",
    "explained": "probability of the explained class",
}
EXTRAS = {
    "aopc": ("AOPC", "up", "mean drop of the predicted class's probability"),
    "lodds": ("LOdds", "down", "mean change of the predicted class's log-probability"),
    "srg": ("SRG", "up", "area of LeRF minus area of MoRF"),
    "abpc": ("ABPC", "up", "area of LeRF minus area of MoRF"),
}
_UP = {"positive": "down", "deletion": "down", "negative": "up", "insertion": "up"}


@dataclass(frozen=True)
class LevelGrid:
    """How many pixels are removed at each level.

    Attributes:
        percents: Whole percents of the pixels, rounded down.
        step: Or every so many pixels of a 224×224 picture, the same share of others; the last step may be shorter.
        ends: Whether a grid of steps holds the untouched picture and the empty one.

    Example:
        >>> steps = LevelGrid(step=1792).counts(50176)
        >>> LevelGrid((0, 10, 90)).counts(50176), steps[:3], len(steps)
        ((0, 5017, 45158), (0, 1792, 3584), 29)
    """

    percents: tuple[int, ...] = ()
    step: int = 0
    ends: bool = True

    def counts(self, units: int, tokens: bool = False) -> tuple[int, ...]:
        """Number removed at each level, of ``units`` pixels or, rounded to the nearest, of that many tokens."""
        if self.percents:
            return tuple(round(units * p / 100) if tokens else units * p // 100 for p in self.percents)
        step = max(1, round(units * self.step / REFERENCE))
        inner = tuple(range(step, units, step))
        return (0, *inner, units) if self.ends else inner

    def shares(self, units: int) -> tuple[float, ...]:
        """Where the levels stand on the axis, as shares."""
        return tuple(p / 100 for p in self.percents) or tuple(k / units for k in self.counts(units))

    def __str__(self) -> str:
        if not self.percents:
            return f"every {self.step} px" + (", both ends" if self.ends else ", ends left out")
        again = self.percents[:2] == (0, 0)
        rest = self.percents[1:] if again else self.percents
        return f"{'0 %, ' if again else ''}{rest[0]}–{rest[-1]} % by {rest[2] - rest[1]} ({len(self.percents)})"


@dataclass(frozen=True)
class Curve:
    """One curve of a protocol.

    Attributes:
        name: What it is called there: positive, negative, deletion or insertion.
        order: "morf" removes the most relevant first, "lerf" the least relevant first.
        fill: What stands in removed places; a key of ``FILLS``, or "tokens" for patches that are left out.
        grid: The levels. Of an insertion they count what is put back, so that it is a LeRF read from the other end.
    """

    name: str
    order: Order
    fill: str
    grid: LevelGrid

    @property
    def title(self) -> str:
        """Its name, with the canvas where a protocol inserts into several."""
        return f"{self.name}({self.fill})"

    @property
    def direction(self) -> str:
        """Whether a good map makes it "up" or "down"."""
        return _UP[self.name]

    def removed(self, units: int) -> tuple[int, ...]:
        """Number of pixels, or tokens, removed at each level, in the order of the curve.

        Example:
            >>> Curve("insertion", "lerf", "blur", LevelGrid(step=25088)).removed(50176)
            (50176, 25088, 0)
        """
        counts = self.grid.counts(units, self.fill == TOKENS)
        return tuple(units - k for k in counts) if self.name == "insertion" else counts


@dataclass(frozen=True)
class Preset:
    """A protocol.

    Attributes:
        name: Its key.
        source: Where it comes from.
        curves: What is measured.
        quantity: What is read off at each level; a key of ``QUANTITIES``.
        area: How a curve becomes a number; a key of ``AREAS``.
        explains: Which classes' maps it is run for.
        extras: Further scores of the same curves; keys of ``EXTRAS``.
        choices: Fields that the source leaves open, each with what was chosen here and why.
    """

    name: str
    source: str
    curves: tuple[Curve, ...]
    quantity: str
    area: str
    explains: tuple[Mode, ...] = ("predicted",)
    extras: tuple[str, ...] = ()
    choices: Mapping[str, str] = field(default_factory=dict)

    @property
    def fills(self) -> tuple[str, ...]:
        """The fills of its curves, each once."""
        return tuple(dict.fromkeys(curve.fill for curve in self.curves))

    @property
    def scores(self) -> dict[str, str]:
        """Every number it gives, and whether better is "up" or "down".

        Example:
            >>> PRESETS["agcam"].scores
            {'positive(mean)': 'down', 'negative(mean)': 'up', 'abpc(mean)': 'up'}
        """
        found = {curve.title: curve.direction for curve in self.curves}
        return found | {f"{extra}({self.fills[0]})": EXTRAS[extra][1] for extra in self.extras}

    def label(self, score: str) -> str:
        """What must be printed with a number: preset, fill, quantity and area rule.

        Example:
            >>> PRESETS["rise"].label("insertion(blur)")
            'rise insertion, fill blur, probability of the predicted class, trapezoid, range scaled to 1'
        """
        if score not in self.scores:
            raise OptionError(f"{self.name} has no score {score!r}: it has {', '.join(self.scores)}")
        name, fill = score.removesuffix(")").split("(")
        rule, title = find_area(self.area).title, QUANTITIES[self.quantity]
        if name in ("aopc", "lodds"):
            title, rule = EXTRAS[name][2], "plain mean over the levels"
        elif name in EXTRAS:
            title = f"{title}, {EXTRAS[name][2]}"
        return f"{self.name} {EXTRAS[name][0] if name in EXTRAS else name}, fill {fill}, {title}, {rule}"

    def filled(self, fill: str) -> Preset:
        """The same with another fill everywhere, under a name that says so; "tokens" leaves patches out instead.

        Example:
            >>> PRESETS["chefer21"].filled("mean").name
            'chefer21-mean'
        """
        curves = tuple(replace(curve, fill=fill) for curve in self.curves)
        return replace(self, name=f"{self.name}-{fill}", curves=curves, choices={**self.choices, "fill": "asked for"})


def _both(fill: str, grid: LevelGrid, lerf: LevelGrid | None = None) -> tuple[Curve, ...]:
    return Curve("positive", "morf", fill, grid), Curve("negative", "lerf", fill, lerf or grid)


def _rise(step: int, *canvases: str) -> tuple[Curve, ...]:
    grid = LevelGrid(step=step)
    return (Curve("deletion", "morf", "mean", grid), *(Curve("insertion", "lerf", c, grid) for c in canvases))


_TENS, _ELEVEN, _FIVES = (LevelGrid(tuple(range(0, stop, by))) for stop, by in ((91, 10), (101, 10), (101, 5)))
_BOTH: tuple[Mode, ...] = ("predicted", "label")
_CHEFER = Preset("chefer21", "Chefer and others 2021, code", _both("black", _TENS), "accuracy", "trapezoid×100", _BOTH)
_VTRANM = Preset(
    "vtranm", "VTranM", _both("black", _FIVES), "accuracy", "unit×100", _BOTH, ("aopc", "lodds"),
    {"fill": "not stated; black, and vtranm-mean beside it", "area": "not stated for the accuracy; range scaled to 1",
     "levels": "rounding not stated; down"},
)  # fmt: skip
_RISE = Preset(
    "rise", "RISE, code, batch evaluation", _rise(1792, "blur"), "predicted", "unit",
    choices={"levels": "steps in pixels are scaled to other picture sizes"},
)  # fmt: skip

PRESETS: dict[str, Preset] = {
    preset.name: preset
    for preset in (
        _CHEFER,
        _VTRANM,
        replace(_VTRANM.filled("mean"), choices={**_VTRANM.choices, "fill": "not stated; mean colour, beside vtranm"}),
        replace(
            _CHEFER, name="gradtoken", source="GradToken",
            choices={"levels": "10 % steps stated, ends not; as chefer21, whose rows it quotes",
                     "fill": "as chefer21, which it says it follows", "area": "as chefer21"},
        ),
        _RISE,
        replace(_RISE, name="rise-224", source="RISE, code, single images", curves=_rise(224, "blur")),
        Preset(
            "vitcx", "ViT-CX", _rise(1792, "mean", "blur"), "explained", "unit",
            choices={"levels": "not stated; RISE's batch step", "fill": "not stated; mean colour for deletion, both "
                     "canvases for insertion", "quantity": "class not stated; the predicted one", "area": "cites RISE"},
        ),
        Preset("agcam", "AGCAM, code", _both("mean", _ELEVEN), "label", "mean", _BOTH, ("abpc",)),
        replace(_CHEFER, name="bth", source="transformerinterp, code", area="forced×100"),
        Preset(
            "m4", "InterpretDL (M4), code", _both("grey", _FIVES, LevelGrid((0, *range(0, 100, 5)))), "predicted", "mean",  # noqa: E501
            extras=("abpc",), choices={"levels": "percentiles there, where tied pixels go together; ranks here"},
        ),
        Preset(
            "srg", "Blücher and others 2024", _both("black", _FIVES), "explained", "unit", _BOTH, ("srg",),
            {"levels": "5 % steps, as vtranm", "fill": "black, as vtranm, so that forwards are shared"},
        ),
        Preset(
            "latec", "LATEC, code",
            (Curve("deletion", "morf", "mean", LevelGrid(step=50, ends=False)),
             Curve("insertion", "lerf", "blur15", LevelGrid(step=50, ends=False))), "predicted", "count",
            choices={"levels": "steps in pixels are scaled to other picture sizes", "fill": "the blur's border is not "
                     "stated; reflected", "quantity": "class not stated; the predicted one"},
        ),
    )
}  # fmt: skip


def find_presets(asked: str | Preset | Iterable[str | Preset]) -> tuple[Preset, ...]:
    """Presets by name or as they are; ``name-fill`` gives a preset another fill.

    Example:
        >>> [preset.name for preset in find_presets(["rise", "chefer21-tokens"])]
        ['rise', 'chefer21-tokens']
    """
    wanted = [asked] if isinstance(asked, str | Preset) else list(asked)
    return tuple(one if isinstance(one, Preset) else _find(one) for one in wanted)


def _find(name: str) -> Preset:
    if name in PRESETS:
        return PRESETS[name]
    base, _, fill = name.rpartition("-")
    if base in PRESETS:
        return PRESETS[base].filled(fill)
    raise OptionError(f"unknown preset {name!r}: choose from {', '.join(PRESETS)}")


def table(presets: Iterable[Preset] = PRESETS.values()) -> str:
    """The presets as a table in Markdown; a star marks what the source leaves open and was chosen here."""
    lines = ["| preset | curves | levels | fill | scored | area | maps of |", "|---|---|---|---|---|---|---|"]
    for p in presets:
        star = {name: "*" if name in p.choices else "" for name in ("levels", "fill", "quantity", "area")}
        curves = ", ".join((*dict.fromkeys(c.name for c in p.curves), *(EXTRAS[e][0] for e in p.extras)))
        levels = "; ".join(dict.fromkeys(str(c.grid) for c in p.curves))
        by_name = {c.name: ", ".join(o.fill for o in p.curves if o.name == c.name) for c in p.curves}
        same = len(p.fills) == 1
        fill = p.fills[0] if same else "; ".join(f"{name} {canvas}" for name, canvas in by_name.items())
        scored, area = QUANTITIES[p.quantity], find_area(p.area).title
        cells = [f"`{p.name}`", curves, levels + star["levels"], fill + star["fill"], scored + star["quantity"]]
        lines.append("| " + " | ".join([*cells, area + star["area"], ", ".join(p.explains)]) + " |")
    return "\n".join(lines)
