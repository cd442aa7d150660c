"""What can be taken away: figures, maps, manifest, program, table."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from io import BytesIO, StringIO
from typing import Any

from vitrail.cli.demo import MOST_COLUMNS
from vitrail.errors import require
from vitrail.explanation import Explanations, slug, versions
from vitrail.web.encoding import finite
from vitrail.web.errors import ApiError, missing
from vitrail.web.jobs import Job
from vitrail.web.snippet import code_of


@dataclass(frozen=True)
class File:
    """A file made for a job.

    Attributes:
        media: Its type.
        make: Makes its bytes.
        kinds: Kinds of jobs that have one.
        drawn: Whether matplotlib makes it.
    """

    media: str
    make: Callable[[Job], bytes]
    kinds: tuple[str, ...] = ("explain", "curves")
    drawn: bool = False


def _figure(job: Job, kind: str) -> bytes:
    held = BytesIO()
    if job.kind == "curves":
        drawing = _curves(job)
    else:
        found = _found(job)
        if job.picture is not None and len(found) > MOST_COLUMNS:
            from vitrail.viz.gallery import gallery

            drawing = gallery(found)
        else:
            drawing = found.figure()
    drawing.savefig(held, format=kind)
    return held.getvalue()


def _curves(job: Job) -> Any:
    """Deletion and insertion beside each other, a line for each method; the control is dashed."""
    require("matplotlib", "plot", "draw figures")
    from matplotlib.figure import Figure

    from vitrail.methods import find

    drawing = Figure(figsize=(7.2, 3.0), dpi=200, layout="constrained")
    name = job.served.name_of(job.targets[0]) if job.targets else ""
    titles = {"deletion": "Deletion (lower is better)", "insertion": "Insertion (higher is better)"}
    axes = drawing.subplots(1, 2, sharey=True)
    for spot, (curve, title) in zip(axes, titles.items(), strict=True):
        for item in job.items:
            values, area = item.more.get(curve, []), item.more.get(f"{curve}_auc")
            if not values:
                continue
            label = find(item.method)[1].title if ":" not in item.method else item.method
            label += "" if area is None else f"  {area:.3f}"
            style = {"color": "0.5", "linestyle": "--"} if item.method.startswith("random") else {}
            spot.plot(item.more["fractions"][: len(values)], values, label=label, linewidth=1.2, **style)
        spot.set_title(title, fontsize=9)
        spot.set_xlabel("share of pixels removed" if curve == "deletion" else "share of pixels shown", fontsize=8)
        spot.tick_params(labelsize=7)
        spot.set_ylim(0, 1.02)
        spot.legend(fontsize=6.5, frameon=False, title="area", title_fontsize=6.5)
    axes[0].set_ylabel(f"probability of {name}", fontsize=8)
    return drawing


def _found(job: Job) -> Explanations:
    """What is finished; copies, since an explanation that is drawn keeps its picture."""
    return Explanations({label: replace(job.found[label]) for label in job.methods if label in job.found})


def _maps(job: Job) -> bytes:
    from safetensors.torch import save

    tensors = {}
    for label, e in _found(job).items():
        for name, tensor in (("maps", e.maps), ("grid", e.grid), ("flat", e.flat), ("targets", e.targets)):
            if tensor is not None:
                tensors[f"{label}/{name}"] = tensor.detach().cpu().clone().contiguous()
    return bytes(save(tensors))


def _manifest(job: Job) -> bytes:
    failed = [{"method": i.method, "target": i.target, "error": i.error} for i in job.items if i.error is not None]
    sheet = {
        "job": job.id, "kind": job.kind, "model": job.served.title, "picture": job.picture,
        "text": job.source if job.picture is None else None, "targets": job.targets, "seed": job.seed,
        "methods": {label: e.manifest() for label, e in _found(job).items()}, "failed": failed,
        "versions": versions(),
    }  # fmt: skip
    if job.kind == "curves":
        names = ("fractions", "deletion", "insertion", "deletion_auc", "insertion_auc")
        sheet["curves"] = {i.method: {name: i.more.get(name) for name in names} for i in job.items}
    return (json.dumps(finite(sheet), indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode()


def _table(job: Job) -> bytes:
    held = StringIO()
    writer = csv.writer(held, lineterminator="\n")
    writer.writerow(("method", "target", "fraction", "deletion", "insertion"))
    for item in job.items:
        columns = (item.more.get(name, []) for name in ("fractions", "deletion", "insertion"))
        writer.writerows((item.method, item.target, *row) for row in zip(*columns, strict=False))
    return held.getvalue().encode()


FILES = {
    "figure.png": File("image/png", lambda job: _figure(job, "png"), drawn=True),
    "figure.pdf": File("application/pdf", lambda job: _figure(job, "pdf"), drawn=True),
    "maps.safetensors": File("application/octet-stream", _maps),
    "manifest.json": File("application/json", _manifest),
    "code.py": File("text/x-python; charset=utf-8", lambda job: code_of(job).encode()),
    "curves.csv": File("text/csv; charset=utf-8", _table, ("curves",)),
}


def file_of(job: Job, name: str) -> File:
    """What is made under a name.

    Raises:
        Refusal: 404 for names that are not known, 409 while nothing is there to be taken.
    """
    file = FILES.get(name)
    if file is None or job.kind not in file.kinds:
        known = ", ".join(n for n, f in FILES.items() if job.kind in f.kinds)
        raise missing(f"file {name[:60]!r} of this job", f"There are {known}.")
    ready = job.found if job.kind == "explain" else [i for i in job.items if i.more.get("deletion")]
    if not ready:
        raise ApiError(409, "nothing of this job is finished", "Wait for its first item, or start it again.")
    return file


def name_of(job: Job, name: str) -> str:
    """What a browser calls the file."""
    return f"vitrail-{slug(job.served.title)}-{name}"
