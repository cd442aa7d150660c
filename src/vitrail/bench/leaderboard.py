"""Entries of the leaderboard: scores of one method, model and data set in a TOML file, and their reproduction.

An entry has what is needed to compute it again: the plan, the run's key (from which seeds derive), hashes of weights
and manifest, and the scores of a sample of images. A hash of the key draws the sample, so that nobody chooses it.
"""

from __future__ import annotations

import hashlib
import json
import math
import tempfile
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from vitrail.bench.chunk import Chunk
from vitrail.bench.context import open_context, open_images
from vitrail.bench.parts import KEYS, write_file
from vitrail.bench.plan import Plan
from vitrail.bench.plan_file import PlanOverrides
from vitrail.bench.report.run_folder import Run
from vitrail.bench.report.section import report_sections
from vitrail.errors import DataError, error_line, require
from vitrail.pipeline.saved_files import slug

#: Images of an entry that are computed again by a check.
SAMPLE = 4
#: Largest difference of a score that counts as reproduced: absolute, and relative to the stated score.
ABSOLUTE, RELATIVE = 1e-3, 1e-2
#: Standard errors of a mean over the sample beyond which the stated mean over all images is implausible.
MAX_DEVIATION = 6.0
_FIELDS = {"model": str, "dataset": str, "method": str, "images": int, "key": str, "weights": str, "manifest": str,
           "plan": str, "values": list, "sample": list}  # fmt: skip
_ROW = ("protocol", "target", "score")
#: Image, protocol, target and score.
_Score = tuple[str, ...]


@dataclass(frozen=True)
class Mismatch:
    """A stated number that was not reproduced.

    Attributes:
        what: Image, protocol and score, or what else differs.
        stated: As in the entry.
        found: As computed.
    """

    what: str
    stated: object
    found: object

    def __str__(self) -> str:
        return f"{self.what}: stated {self.stated}, found {self.found}"


def write_entries(folder: str | Path, out: str | Path) -> list[Path]:
    """Write an entry for each model, data set and method of a finished run; controls have none.

    Raises:
        DataError: The run is not finished.
    """
    run = Run(folder)
    if run.missing_chunks:
        raise DataError(f"{folder} is not finished ({run.missing_chunks} chunks are missing): run the plan again")
    values: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for section in report_sections(run):
        for column in section.columns:
            for ranked in column.ranking.values():
                if not ranked.control:
                    values.setdefault((section.model, section.dataset, ranked.method), []).append({
                        "protocol": section.protocol, "target": section.target, "score": column.metric.score,
                        "direction": column.metric.direction, "images": ranked.images, "value": ranked.value.value,
                        "interval": [ranked.value.low, ranked.value.high],
                    })  # fmt: skip
    paths = []
    for (model, dataset, method), rows in values.items():
        entry = _entry(run, model, dataset, method, rows)
        name = f"{slug(model)}--{slug(dataset)}--{slug(method)}.toml"
        text = render_entry(entry)
        paths.append(write_file(Path(out) / name, lambda file, text=text: file.write(text.encode())))  # type: ignore[misc]
    return paths


def _entry(run: Run, model: str, dataset: str, method: str, values: list[dict[str, Any]]) -> dict[str, Any]:
    import polars as pl

    spec = next(m for m in run.plan.models if m.title == model)
    data = next(d for d in run.plan.dataset if d.title == dataset)
    reduced = run.plan.model_copy(update={
        "models": (spec.model_copy(update={"weights": "random" if spec.weights == "random" else None}),),
        "dataset": (data.model_copy(update={"root": None}),), "methods": (method,), "controls": False,
        "keep_maps": False, "paper": None,
    })  # fmt: skip
    where = (pl.col("model") == model) & (pl.col("dataset") == dataset) & (pl.col("method") == method)
    rows = run.scores().filter(where, pl.col("image") != "").collect()
    ids = sample_ids(run.manifest["key"], rows["image"].unique().to_list())  # images without a score too
    table = rows.filter(pl.col("value").is_not_null())
    finite = table.filter(pl.col("value").is_finite()).sort(KEYS)
    sample = [
        {"image": name, "scores": [list(row) for row in finite.filter(image=name).select(*_ROW, "value").iter_rows()]}
        for name in ids
    ]
    manifest = (run.folder / "manifest.json").read_bytes()
    return {
        "model": model, "dataset": dataset, "method": method, "images": table["image"].n_unique(),
        "key": run.manifest["key"], "weights": run.manifest["weights"][model],
        "manifest": hashlib.sha256(manifest).hexdigest(), "device": run.manifest["device"],
        "versions": ", ".join(f"{name} {number}" for name, number in run.manifest["versions"].items()),
        "plan": reduced.model_dump_json(exclude_defaults=True), "values": values, "sample": sample,
    }  # fmt: skip


def sample_ids(key: str, ids: Sequence[str]) -> list[str]:
    """The images of an entry that are computed again, in an order that the run's key decides.

    Example:
        >>> sample_ids("a", ["x", "y", "z"]) == sample_ids("a", ["z", "y", "x"])
        True
    """
    return sorted(ids, key=lambda name: hashlib.sha256(f"{key}\0{name}".encode()).digest())[:SAMPLE]


def read_entry(path: str | Path) -> dict[str, Any]:
    """Read an entry.

    Raises:
        DataError: It is not TOML, or a field is missing or has another type.
    """
    try:
        entry = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read as TOML: {error}") from error
    wrong = [name for name, kind in _FIELDS.items() if not isinstance(entry.get(name), kind)]
    if wrong:
        raise DataError(f"{path}: {', '.join(wrong)} missing or of another type; write entries with `vitrail report`")
    for row in entry["values"]:
        try:
            low, high = row["interval"]
            valid = {*_ROW} <= set(row) and low <= row["value"] <= high
        except (KeyError, TypeError, ValueError):
            valid = False
        if not valid:
            raise DataError(f"{path}: {row} is no score with an interval around its value")
    try:
        scores = [[str(one["image"]), *row[:3], float(row[3])] for one in entry["sample"] for row in one["scores"]]
        valid = all(len(row) == 5 for row in scores)
    except (KeyError, TypeError, ValueError, IndexError):
        valid = False
    if not valid:
        raise DataError(f"{path}: a sample has an image, and scores as [protocol, target, score, value]")
    return entry


def check_entry(
    path: str | Path, *, overrides: PlanOverrides | None = None, device: str = "cpu"
) -> tuple[int, list[Mismatch]]:
    """Compute the sample of an entry again.

    Returns:
        Number of scores that were compared, and what was not reproduced.

    Raises:
        DataError: The entry or its data cannot be read.
    """
    entry = read_entry(path)
    try:
        raw = dict(json.loads(entry["plan"]))
        (overrides or PlanOverrides()).apply_to(raw)
        plan = Plan.model_validate(raw)
    except (TypeError, ValueError, AttributeError) as error:  # pydantic's errors are among these
        raise DataError(f"{path}: its plan cannot be read: {error_line(error)}") from error
    stated_ids = {row["image"] for row in entry["sample"]}
    all_ids = open_images(plan.dataset[0]).ids
    count = max([entry["images"], *(int(row.get("images", 0)) for row in entry["values"])])
    if count > len(all_ids):
        return 0, [Mismatch("number of images", count, len(all_ids))]
    expected = sample_ids(entry["key"], all_ids)
    if stated_ids != set(expected):
        return 0, [Mismatch("images of the sample", ", ".join(sorted(stated_ids)), ", ".join(expected))]
    data = plan.dataset[0].model_copy(update={"ids": tuple(expected), "limit": None, "draw": None})
    text = plan.model_copy(update={"dataset": (data,)}).model_dump_json()
    context = open_context(text, device)
    found_hash = context.any_model(0).weights_hash
    if found_hash != entry["weights"]:
        return 0, [Mismatch("SHA-256 of the weights", entry["weights"], found_hash)]
    with tempfile.TemporaryDirectory() as folder:
        indices = context.images(0).indices
        chunk = Chunk(folder, entry["key"], text, found_hash, 0, 0, 0, 0, indices, plan.specs())
        pq: Any = require("pyarrow.parquet", "bench", "read tables")
        rows = pq.read_table(chunk.perform(device)).to_pylist()
    finite = [row for row in rows if row["value"] is not None and math.isfinite(row["value"])]
    computed = {tuple(row[name] for name in ("image", *_ROW)): row["value"] for row in finite}
    stated = {(one["image"], *row[:3]): row[3] for one in entry["sample"] for row in one["scores"]}
    return len(stated), [*_compare(stated, computed), *_implausible_means(entry["values"], computed)]


def _implausible_means(values: Sequence[Mapping[str, Any]], computed: Mapping[_Score, float]) -> Iterator[Mismatch]:
    """Stated means over all images that are too far from the sample's to be those of the same scores.

    The spread of a score is that of the sample or that of the stated interval, whichever is larger. A mean that is a
    little wrong is not found.
    """
    for row in values:
        name = tuple(str(row[column]) for column in _ROW)
        sample = [value for identity, value in computed.items() if identity[1:] == name]
        if len(sample) < SAMPLE:  # not a mean of scores of single images, or some have none
            continue
        low, high = row["interval"]
        spread = max(stdev(sample), (high - low) / (2 * 1.96) * math.sqrt(row.get("images", len(sample))))
        limit = MAX_DEVIATION * spread / math.sqrt(len(sample)) + max(ABSOLUTE, RELATIVE * abs(row["value"]))
        if abs(fmean(sample) - row["value"]) > limit:
            yield Mismatch(f"mean of {' '.join(name)}", row["value"], f"{fmean(sample):.4g} on {len(sample)} images")


def _compare(stated: Mapping[_Score, float], computed: Mapping[_Score, float]) -> Iterator[Mismatch]:
    for identity, value in stated.items():
        found = computed.get(identity)
        if found is None or not math.isclose(found, value, rel_tol=RELATIVE, abs_tol=ABSOLUTE):
            yield Mismatch(" ".join(identity), value, found)
    for identity in computed.keys() - stated.keys():  # a score that was left out
        yield Mismatch(" ".join(identity), None, computed[identity])


def render_entry(entry: Mapping[str, Any]) -> str:
    r"""Render an entry as TOML: its fields, then a table for each row of its lists.

    Example:
        >>> render_entry({"model": "a", "values": [{"score": "miou", "interval": [0.1, 0.2]}]})
        'model = "a"\n\n[[values]]\nscore = "miou"\ninterval = [0.1, 0.2]\n'
    """
    lines = [f"{name} = {_value(value)}" for name, value in entry.items() if not _is_table(value)]
    for name, rows in entry.items():
        for row in rows if _is_table(rows) else ():
            lines += ["", f"[[{name}]]", *(f"{key} = {_value(value)}" for key, value in row.items())]
    return "\n".join(lines) + "\n"


def _is_table(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(one, dict) for one in value)


def _value(value: object) -> str:
    """A string, number, truth value or list; JSON's form of these is TOML's."""
    if isinstance(value, str) and '"' in value and "'" not in value:
        return f"'{value}'"  # JSON in a literal string stays readable
    return json.dumps(value, ensure_ascii=False)
