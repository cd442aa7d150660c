"""Files of a job: figures, maps, manifest, Python code and table."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from io import BytesIO, StringIO
from typing import Any

from vitrail.errors import require
from vitrail.methods import find
from vitrail.pipeline.explanation import Explanations
from vitrail.pipeline.provenance import versions
from vitrail.pipeline.saved_files import slug
from vitrail.web.api_errors import ApiError, not_found
from vitrail.web.cache import CheckCache
from vitrail.web.encoding import replace_non_finite
from vitrail.web.jobs import Job
from vitrail.web.map_figure import map_figure
from vitrail.web.page_targets import target_json, target_name
from vitrail.web.snippet import python_code


@dataclass(frozen=True)
class JobFile:
    """A kind of file that can be downloaded.

    Attributes:
        media_type: Its media type.
        create: Creates its bytes from a job and the known checks of its maps.
        kinds: The kinds of jobs it is available for.
        uses_matplotlib: Whether matplotlib draws it.
    """

    media_type: str
    create: Callable[[Job, CheckCache], bytes]
    kinds: tuple[str, ...] = ("explain", "curves")
    uses_matplotlib: bool = False


def _figure(job: Job, checks: CheckCache, kind: str) -> bytes:
    figure = _curves_figure(job) if job.kind == "curves" else map_figure(_explanations(job, checks))
    buffer = BytesIO()
    figure.savefig(buffer, format=kind, bbox_inches="tight", pad_inches=0.05)
    return buffer.getvalue()


def _curves_figure(job: Job) -> Any:
    """Draw deletion and insertion side by side, one line per method; the random control is dashed."""
    require("matplotlib", "plot", "draw figures")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.2, 3.0), dpi=200, layout="constrained")
    class_name = target_name(job.targets[0], job.served) if job.targets else ""
    titles = {"deletion": "Deletion (lower is better)", "insertion": "Insertion (higher is better)"}
    all_axes = figure.subplots(1, 2, sharey=True)
    for axes, (curve, title) in zip(all_axes, titles.items(), strict=True):
        for item in job.items:
            values, area = item.result.get(curve, []), item.result.get(f"{curve}_auc")
            if not values:
                continue
            label = find(item.method)[1].title if ":" not in item.method else item.method
            label += "" if area is None else f"  {area:.3f}"
            style = {"color": "0.5", "linestyle": "--"} if item.method.startswith("random") else {}
            axes.plot(item.result["fractions"][: len(values)], values, label=label, linewidth=1.2, **style)
        axes.set_title(title, fontsize=9)
        axes.set_xlabel("fraction of pixels removed" if curve == "deletion" else "fraction of pixels shown", fontsize=8)
        axes.tick_params(labelsize=7)
        axes.set_ylim(0, 1.02)
        axes.legend(fontsize=6.5, frameon=False, title="area", title_fontsize=6.5)
    all_axes[0].set_ylabel(f"probability of {class_name}", fontsize=8)
    return figure


def _explanations(job: Job, checks: CheckCache) -> Explanations:
    """The finished explanations with their checks; copies, since a drawn explanation caches its image."""
    known = checks.of_job(job)
    return Explanations({
        label: replace(job.explanations[label], checks={(0, k): check for k, check in known[label].items()})
        for label in job.methods if label in job.explanations
    })  # fmt: skip


def _maps(job: Job, checks: CheckCache) -> bytes:
    from safetensors.torch import save

    tensors = {}
    for label, e in _explanations(job, checks).items():
        for name, tensor in (("maps", e.maps), ("grid", e.grid), ("flat", e.constant), ("targets", e.targets)):
            if tensor is not None:
                tensors[f"{label}/{name}"] = tensor.detach().cpu().clone().contiguous()
    return bytes(save(tensors))


def _manifest(job: Job, checks: CheckCache) -> bytes:
    failed = [
        {"method": i.method, "target": target_json(i.target), "error": i.error}
        for i in job.items
        if i.error is not None
    ]
    manifest = {
        "job": job.id, "kind": job.kind, "model": job.served.title, "picture": job.image_id,
        "text": job.raw_input if job.image_id is None else None,
        "targets": [target_json(target) for target in job.targets or []],
        "contrast": target_json(job.contrast), "seed": job.seed,
        "methods": {label: e.manifest() for label, e in _explanations(job, checks).items()}, "failed": failed,
        "versions": versions(),
    }  # fmt: skip
    if job.kind == "curves":
        names = ("fractions", "deletion", "insertion", "deletion_auc", "insertion_auc")
        manifest["curves"] = {i.method: {name: i.result.get(name) for name in names} for i in job.items}
    return (json.dumps(replace_non_finite(manifest), indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode()


def _curves_table(job: Job, _: CheckCache) -> bytes:
    buffer = StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(("method", "target", "fraction", "deletion", "insertion"))
    for item in job.items:
        columns = (item.result.get(name, []) for name in ("fractions", "deletion", "insertion"))
        writer.writerows((item.method, item.target, *row) for row in zip(*columns, strict=False))
    return buffer.getvalue().encode()


FILES = {
    "figure.png": JobFile("image/png", lambda job, checks: _figure(job, checks, "png"), uses_matplotlib=True),
    "figure.pdf": JobFile("application/pdf", lambda job, checks: _figure(job, checks, "pdf"), uses_matplotlib=True),
    "maps.safetensors": JobFile("application/octet-stream", _maps),
    "manifest.json": JobFile("application/json", _manifest),
    "code.py": JobFile("text/x-python; charset=utf-8", lambda job, _: python_code(job).encode()),
    "curves.csv": JobFile("text/csv; charset=utf-8", _curves_table, ("curves",)),
}


def find_file(job: Job, name: str) -> JobFile:
    """Return the file of a job by its name."""
    file = FILES.get(name)
    if file is None or job.kind not in file.kinds:
        available = ", ".join(n for n, f in FILES.items() if job.kind in f.kinds)
        raise not_found(f"file {name[:60]!r}", f"Available: {available}.")
    ready = job.explanations if job.kind != "curves" else [i for i in job.items if i.result.get("deletion")]
    if not ready:
        raise ApiError(409, "no result of this job is ready", "Wait for the first one, or start the job again.")
    return file


def download_name(job: Job, name: str) -> str:
    """The file name that a browser saves."""
    return f"vitrail-{slug(job.served.title)}-{name}"
