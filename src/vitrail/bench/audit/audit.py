"""The audit of a store of maps: statistics by class, findings in order, drift between two models."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from vitrail.bench.audit.measures import (
    MIN_CLUSTER,
    border_patches,
    cluster_maps,
    describe_place,
    place_of,
    relevance_shares,
)
from vitrail.bench.map_store import MapStore
from vitrail.errors import InputError, OptionError
from vitrail.models.percentages import percent
from vitrail.scores.agreement import spearman
from vitrail.scores.statistics import Array

#: Lowest score of a finding that is listed, and most findings.
MIN_SCORE, MAX_FINDINGS = 0.1, 20

#: From rows of the index to the share of each patch that the explained object covers, shape (maps, rows, columns); NaN
#: where no mask is known.
Masks = Callable[[Sequence[Mapping[str, Any]], tuple[int, int]], Array]


@dataclass(frozen=True, eq=False)
class ClassAudit:
    """The maps of one class.

    Attributes:
        model: Model, or "".
        dataset: Data set, or "".
        label: Index of the explained class.
        name: Name of the class, or "class N".
        maps: Number of maps in the store.
        read: Number of them that were read.
        border: Mean share of relevance on the border.
        outside: Mean share of relevance outside the object; NaN without masks.
        clusters: Sizes of the clusters of maps, the largest first.
        score: Highest score of a cluster; see `Finding`.
        mean: Mean share of each patch, shape (rows, columns).
        deviation: Its standard deviation over the maps.
    """

    model: str
    dataset: str
    label: int
    name: str
    maps: int
    read: int
    border: float
    outside: float
    clusters: tuple[int, ...]
    score: float
    mean: Array = field(repr=False)
    deviation: Array = field(repr=False)


@dataclass(frozen=True, eq=False)
class Finding:
    """A cluster of maps with relevance at one place that is not on the object.

    Attributes:
        model: Model, or "".
        dataset: Data set, or "".
        label: Index of the class.
        name: Name of the class.
        score: Mean share of a map's relevance that is at the place and off the object; without masks, at the place
            and on the border of the image.
        place: Where the place is, in words.
        patches: Share of the image that the place covers: the score of a uniform map is at most this.
        maps: Number of maps in the cluster.
        share: Share of the class's maps in the cluster.
        images: Ids of the images with most relevance at the place, the first ones first.
        mean: Mean share of each patch in the cluster, shape (rows, columns).
    """

    model: str
    dataset: str
    label: int
    name: str
    score: float
    place: str
    patches: float
    maps: int
    share: float
    images: tuple[str, ...]
    mean: Array = field(repr=False)

    @property
    def sentence(self) -> str:
        """The finding in one sentence."""
        return (
            f"{percent(self.score)} of the relevance of {self.maps} maps ({percent(self.share)} of the class) "
            f"is at one place, {self.place}, which covers {percent(self.patches)} of the image"
        )


@dataclass(frozen=True)
class Drift:
    """Maps of the same images by two models, for one class of the first.

    Attributes:
        model: The first model.
        against: The other model, or run.
        name: Name of the class.
        images: Number of images.
        correlation: Mean rank correlation of the two maps of an image.
        same_class: Share of the images whose explained class is the same.
    """

    model: str
    against: str
    name: str
    images: int
    correlation: float
    same_class: float


@dataclass(frozen=True, eq=False)
class Audit:
    """What the maps of a data set show.

    Attributes:
        key: Key of the store.
        method: The method.
        target: Explained class of runs, or "".
        masks: Whether masks of the objects were known.
        classes: By class, those with the highest score first.
        findings: The findings, the highest score first.
        drifts: By class, the lowest rank correlation first.
        checks: Verdicts of the checked maps, with counts.
        failed: Images without a map.
    """

    key: str
    method: str
    target: str
    masks: bool
    classes: tuple[ClassAudit, ...]
    findings: tuple[Finding, ...]
    drifts: tuple[Drift, ...] = ()
    checks: Mapping[str, int] = field(default_factory=dict)
    failed: int = 0

    @property
    def failed_checks(self) -> float:
        """Share of the checked maps that are not faithful; NaN if none was checked."""
        total = sum(self.checks.values())
        return (total - self.checks.get("faithful", 0)) / total if total else float("nan")

    def to_dict(self) -> dict[str, Any]:
        """The audit as data for JSON; maps are lists, numbers that are not known None."""
        found = asdict(self) | {"failed_checks": self.failed_checks}
        found["findings"] = [asdict(one) | {"sentence": one.sentence} for one in self.findings]
        plain: dict[str, Any] = _plain(found)
        return plain


def audit_maps(
    store: MapStore,
    *,
    method: str | None = None,
    target: str | None = None,
    masks: Masks | None = None,
    against: MapStore | None = None,
    per_class: int = 200,
    advance: Callable[[], None] = lambda: None,
) -> Audit:
    """Audit the maps of a data set.

    Args:
        store: The maps.
        method: Whose maps; by default the first method of the manifest.
        target: Explained class of a run, "predicted" or "label"; by default the first.
        masks: Gives the patches that the object covers, where they are known.
        against: Maps of the same images by another model or version, for the drift. The models of one run are compared
            with its first one in any case.
        per_class: Most maps that are read of a class, spread evenly.
        advance: Called after each class.

    Raises:
        OptionError: The store has no such method or target.
    """
    methods, targets = store.values("method"), store.values("target")
    default = [spec for spec in store.manifest.get("methods", ()) if spec in methods] or methods
    method, target = method or next(iter(default), ""), target or next(iter(targets), None)
    if method not in methods or (targets and target not in targets):
        raise OptionError(
            f"{store.folder} has no maps by {method!r}{f' for {target!r}' if target else ''}: it has "
            f"{', '.join(methods)}{f' for {chr(44).join(targets)}' if targets else ''}"
        )
    where = {"method": method} | ({"target": target} if target else {})
    rows = [row for row in store.select(**where).to_pylist() if not row["flat"]]
    if not rows:
        raise InputError(f"{store.folder} has no map by {method} with relevance")
    groups: dict[tuple[str, str, int], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["model"] or "", row["dataset"] or "", row["class"]), []).append(row)
    classes, findings = [], []
    for group in groups.values():
        one, found = _audit_class(store, group, masks, per_class)
        classes.append(one)
        findings += found
        advance()
    drifts = _drifts(store, where, store) + (_drifts(store, where, against) if against is not None else [])
    return Audit(
        store.key, method, target or "", any(one.outside == one.outside for one in classes),
        tuple(sorted(classes, key=lambda one: -one.score)),
        tuple(sorted(findings, key=lambda one: -one.score)[:MAX_FINDINGS]),
        tuple(sorted(drifts, key=lambda one: one.correlation)), {},
        len(store.table(method=method)) - len(store.select(method=method)),
    )  # fmt: skip


def _audit_class(
    store: MapStore, rows: Sequence[dict[str, Any]], masks: Masks | None, per_class: int
) -> tuple[ClassAudit, list[Finding]]:
    step = max(1, len(rows) / per_class)
    chosen = [rows[int(i * step)] for i in range(min(len(rows), per_class))]
    shares = relevance_shares(store.stack(chosen).numpy())
    grid = (shares.shape[1], shares.shape[2])
    border = border_patches(*grid)
    covered = np.full(shares.shape, np.nan) if masks is None else masks(chosen, grid)
    known = np.asarray(~np.isnan(covered).any((1, 2)))
    outside = (shares * (1 - covered)).sum((1, 2))[known]
    off = np.where(known[:, None, None], 1 - np.nan_to_num(covered), border)
    first = chosen[0]
    owner = (first["model"] or "", first["dataset"] or "", first["class"])
    name = (first["name"] or f"class {first['class']}").split(",")[0]
    labels = cluster_maps(shares)
    findings = []
    for label in np.unique(labels):
        members = (labels == label).nonzero()[0]
        mean = shares[members].mean(0)
        place = place_of(mean)
        at_place = (shares[members] * off[members] * place).sum((1, 2))
        order = members[np.argsort(-at_place, kind="stable")]
        if len(members) >= MIN_CLUSTER:  # fewer maps share nothing
            findings.append(Finding(
                *owner, name, float(at_place.mean()), describe_place(mean * place), float(place.mean()), len(members),
                len(members) / len(chosen), tuple(chosen[i]["image"] for i in order[:6]), mean,
            ))  # fmt: skip
    score = max((one.score for one in findings), default=0.0)
    sizes = tuple(sorted(np.bincount(labels).tolist(), reverse=True))
    audited = ClassAudit(
        *owner, name, len(rows), len(chosen), float((shares * border).sum((1, 2)).mean()),
        float(outside.mean()) if known.any() else float("nan"), sizes, score, shares.mean(0), shares.std(0),
    )  # fmt: skip
    return audited, [one for one in findings if one.score >= MIN_SCORE]


def _drifts(store: MapStore, where: Mapping[str, Any], other: MapStore) -> list[Drift]:
    """Compare the maps of the first model with those of the others, or with those of another store, by class."""
    weights = store.manifest.get("weights")  # by model, in the order of the plan; of a folder, a file name
    first, *rest = list(weights) if isinstance(weights, dict) else [""]
    compared = rest if other is store else [first]
    own = {_identity(row): row for row in store.select(**where).to_pylist() if (row["model"] or "") == first}
    drifts = []
    for model in compared:
        theirs = other.select(
            **({"method": where["method"]} | ({"target": where["target"]} if "target" in where else {}))
        )
        rows = [row for row in theirs.to_pylist() if other is not store or (row["model"] or "") == model]
        pairs = [(own[_identity(row)], row) for row in rows if _identity(row) in own]
        by_class: dict[str, list[tuple[dict[str, Any], dict[str, Any]]]] = {}
        for a, b in pairs:
            by_class.setdefault((a["name"] or f"class {a['class']}").split(",")[0], []).append((a, b))
        title = model if other is store else f"run {other.key}"
        for name, members in by_class.items():
            maps = [side.stack([pair[i] for pair in members]) for i, side in enumerate((store, other))]
            if maps[0].shape != maps[1].shape:  # another patch grid
                maps[1] = torch.nn.functional.interpolate(maps[1][:, None], maps[0].shape[1:], mode="bilinear")[:, 0]
            same = float(np.mean([a["class"] == b["class"] for a, b in members]))
            drifts.append(Drift(first, title, name, len(members), float(spearman(*maps).mean()), same))
    return drifts


def _identity(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return row["dataset"], row["image"]


def _plain(value: Any) -> Any:
    """A value for JSON: arrays as rounded lists, NaN as None."""
    if isinstance(value, np.ndarray):
        rounded: NDArray[np.float64] = value.round(6)
        return rounded.tolist()
    if isinstance(value, Mapping):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return None if isinstance(value, float) and value != value else value
