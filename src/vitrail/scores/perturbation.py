"""What a model said of perturbed pictures, kept so that every score can be read off later without asking it again.

For each image, method, explained class, order and fill a strip holds, level by level: the number of pixels removed, the
log-probability of the predicted class and of the label, the class that won, and the two largest log-probabilities.
Strips of several workers are joined in any order to the same result.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from vitrail.errors import InputError
from vitrail.scores.curves import aopc, find_area, gap, lodds
from vitrail.scores.presets import Curve, Mode, Preset
from vitrail.scores.ranks import Order
from vitrail.scores.statistics import Tally

#: What is noted of each forward pass, in this order.
COLUMNS = ("log-prob of the predicted class", "log-prob of the label", "winner", "first log-prob", "second log-prob")


def note(log_probs: Tensor, predicted: Tensor, labels: Tensor) -> Tensor:
    """What a record keeps of some outputs, shape (N, 5); see ``COLUMNS``.

    Args:
        log_probs: Shape (N, C), in float32.
        predicted: The class the unperturbed picture was given, shape (N,).
        labels: The true class, shape (N,), or −1 where it is unknown, which gives NaN.

    Example:
        >>> note(torch.tensor([[0.25, 0.75]]).log(), torch.tensor([0]), torch.tensor([1])).exp()[:, [0, 1, 3, 4]]
        tensor([[0.2500, 0.7500, 0.7500, 0.2500]])
    """
    two = log_probs.topk(min(2, log_probs.shape[1]), 1)
    second = two.values[:, 1] if log_probs.shape[1] > 1 else torch.full_like(two.values[:, 0], -torch.inf)
    asked = log_probs.gather(1, torch.stack([predicted, labels.clamp_min(0)], 1))
    label = torch.where(labels < 0, torch.nan, asked[:, 1])
    # Classes are whole numbers far below 2²⁴, so float32 holds them exactly and one tensor is enough.
    return torch.stack([asked[:, 0], label, two.indices[:, 0].to(asked.dtype), two.values[:, 0], second], 1)


class Key(NamedTuple):
    """Which strip: the method, whose class its maps explain, the order of removal, and the fill."""

    method: str
    mode: Mode
    order: Order
    fill: str


@dataclass(frozen=True)
class Forwards:
    """How many pictures the model was shown, and why; trials before patches are left out do not count.

    Attributes:
        unperturbed: Pictures as they are, once for all methods, orders, classes and scores.
        perturbed: Pictures with some pixels removed.
        canvas: Pictures with all pixels removed where the canvas depends on the picture, once for all methods.
        shared: Pictures with all pixels removed under a fill that is the same for the whole data set.
    """

    unperturbed: int = 0
    perturbed: int = 0
    canvas: int = 0
    shared: int = 0

    @property
    def total(self) -> int:
        """All of them."""
        return self.unperturbed + self.perturbed + self.canvas + self.shared

    def __add__(self, other: Forwards) -> Forwards:
        names = ("unperturbed", "perturbed", "canvas", "shared")
        return Forwards(*(getattr(self, name) + getattr(other, name) for name in names))


@dataclass(frozen=True)
class Strip:
    """One kind of curve of n images.

    Attributes:
        ids: The images.
        units: Number of pixels of an image, or of patches where these are left out.
        removed: Number of them removed at each of L levels, ascending.
        predicted: Class of the unperturbed picture, shape (n,).
        labels: True class, shape (n,), −1 where unknown.
        notes: What the model said, shape (n, L, 5); see ``COLUMNS``.
        nan: NaN pixels of the map, shape (n,).
        flat: Whether the map was constant or not finite, shape (n,).
    """

    ids: tuple[str, ...]
    units: int
    removed: tuple[int, ...]
    predicted: Tensor
    labels: Tensor
    notes: Tensor = field(repr=False)
    nan: Tensor = field(repr=False)
    flat: Tensor = field(repr=False)

    def at(self, counts: Sequence[int]) -> Tensor:
        """The notes at some levels, shape (n, len(counts), 5)."""
        at = {k: i for i, k in enumerate(self.removed)}
        missing = [k for k in counts if k not in at]
        if missing:
            raise InputError(f"no record with {missing[0]} of {self.units} removed: was this preset run?")
        return self.notes[:, [at[k] for k in counts]]

    def read(self, counts: Sequence[int], quantity: str, mode: Mode) -> Tensor:
        """A quantity of ``QUANTITIES`` at some levels, float64, shape (n, len(counts)); NaN where no label is."""
        notes = self.at(counts).double()
        known = (self.labels >= 0)[:, None]
        if quantity == "accuracy":
            return torch.where(known, (notes[..., 2] == self.labels[:, None]).double(), torch.nan)
        if quantity == "agreement":
            return (notes[..., 2] == self.predicted[:, None]).double()
        by_label = quantity == "label" or (quantity == "explained" and mode == "label")
        return notes[..., 1 if by_label else 0].exp()

    def pick(self, order: Sequence[int]) -> Strip:
        """Some of the images, by position."""
        rows = torch.tensor(order, dtype=torch.long)
        names = ("predicted", "labels", "notes", "nan", "flat")
        tensors: dict[str, Any] = {name: getattr(self, name)[rows] for name in names}
        return replace(self, ids=tuple(self.ids[i] for i in order), **tensors)


def join_strips(strips: Sequence[Strip]) -> Strip:
    """Strips of different images as one, in order of the images' ids."""
    first = strips[0]
    if any((s.units, s.removed) != (first.units, first.removed) for s in strips):
        raise InputError("records with different levels or picture sizes cannot be joined: run all parts with one list")
    ids = [i for strip in strips for i in strip.ids]
    if len(set(ids)) < len(ids):
        twice = next(i for i in ids if ids.count(i) > 1)
        raise InputError(f"image {twice!r} was scored twice: give every image an id of its own")
    names = ("predicted", "labels", "notes", "nan", "flat")
    tensors: dict[str, Any] = {name: torch.cat([getattr(strip, name) for strip in strips]) for name in names}
    joined = replace(first, ids=tuple(ids), **tensors)
    return joined.pick(sorted(range(len(ids)), key=ids.__getitem__))


@dataclass(frozen=True)
class Records:
    """All strips of a run.

    Attributes:
        strips: By method, explained class, order and fill.
        forwards: What they cost.
        settings: What the numbers depend on beside the presets; parts of one run must agree in it.
    """

    strips: Mapping[Key, Strip] = field(default_factory=dict)
    forwards: Forwards = field(default_factory=Forwards)
    settings: Mapping[str, Any] = field(default_factory=dict)

    @staticmethod
    def join(parts: Iterable[Records]) -> Records:
        """Records of several workers as one, whatever their order: other images, other methods, or both."""
        parts = [part for part in parts if part.strips]
        if not parts:
            return Records()
        if any(dict(part.settings) != dict(parts[0].settings) for part in parts):
            made = [dict(part.settings) for part in parts]
            raise InputError(f"records made with different settings cannot be joined: {made}")
        by_key: dict[Key, list[Strip]] = {}
        for part in parts:
            for key, strip in part.strips.items():
                by_key.setdefault(key, []).append(strip)
        forwards = sum((part.forwards for part in parts), Forwards())
        return Records({key: join_strips(by_key[key]) for key in sorted(by_key)}, forwards, parts[0].settings)

    def __add__(self, other: Records) -> Records:
        return Records.join([self, other])

    @property
    def methods(self) -> tuple[str, ...]:
        """The methods, in order of name."""
        return tuple(sorted({key.method for key in self.strips}))

    @property
    def modes(self) -> tuple[Mode, ...]:
        """The explained classes."""
        return tuple(sorted({key.mode for key in self.strips}, reverse=True))

    def curve(self, curve: Curve, method: str, mode: Mode, quantity: str) -> tuple[tuple[str, ...], Tensor]:
        """The images and a quantity at each level of a curve, shape (n, L)."""
        strip = self._strip(curve, method, mode)
        return strip.ids, strip.read(curve.removed(strip.units), quantity, mode)

    def _strip(self, curve: Curve, method: str, mode: Mode) -> Strip:
        key = Key(method, mode, curve.order, curve.fill)
        if key not in self.strips:
            known = ", ".join(sorted({"/".join(k) for k in self.strips}))
            raise InputError(f"no record of {'/'.join(key)}: there are {known or 'none'}")
        return self.strips[key]

    def scores(self, preset: Preset, method: str, mode: Mode = "predicted") -> dict[str, Tensor]:
        """Every score of a preset by name, each with a value for each image, float64, shape (n,)."""
        rule, logs = find_area(preset.area), torch.empty(0)
        found: dict[str, Tensor] = {}
        areas: dict[Order, Tensor] = {}
        for curve in preset.curves:
            strip = self._strip(curve, method, mode)
            counts = curve.removed(strip.units)
            values = rule(strip.read(counts, preset.quantity, mode), curve.grid.shares(strip.units))
            found[curve.title] = values
            areas.setdefault(curve.order, values)
            if curve.order == "morf":
                logs = strip.at(counts)[..., 0].double()
        for extra in preset.extras:
            name = f"{extra}({preset.fills[0]})"
            if extra in ("aopc", "lodds"):
                found[name] = aopc(logs) if extra == "aopc" else lodds(logs)
            else:
                found[name] = gap(areas["lerf"], areas["morf"])
        return found

    def tally(self, preset: Preset, method: str, mode: Mode = "predicted") -> Tally:
        """The scores of a preset by image id, for means, intervals and paired tests; columns are the scores' labels."""
        strip = self._strip(preset.curves[0], method, mode)
        tally = Tally()
        values = {preset.label(name): v for name, v in self.scores(preset, method, mode).items()}
        tally.add(strip.ids, {"flat": strip.flat.double(), **values})
        return tally

    def summary(self, preset: Preset, method: str, mode: Mode = "predicted") -> dict[str, Any]:
        """Number of images, of maps that say nothing, and the mean of each score under its label."""
        return self.tally(preset, method, mode).summary()

    def rows(self) -> Iterator[dict[str, Any]]:
        """The records one by one, for a table on disk."""
        for key, strip in self.strips.items():
            for i, image in enumerate(strip.ids):
                common = {"image": image, **key._asdict(), "units": strip.units}
                common |= {"class_predicted": int(strip.predicted[i]), "class_label": int(strip.labels[i])}
                for k, values in zip(strip.removed, strip.notes[i].tolist(), strict=True):
                    predicted, label, winner, first, second = values
                    yield {
                        **common, "removed": k, "logp_predicted": predicted, "logp_label": label,
                        "winner": int(winner), "logp_first": first, "logp_second": second,
                    }  # fmt: skip
