"""The page and the JSON file of an audit."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from vitrail.bench.audit.audit import Audit, Finding, audit_maps
from vitrail.bench.audit.images import AuditImages
from vitrail.bench.map_store import MapStore, open_maps
from vitrail.bench.parts import write_file
from vitrail.bench.report.example_images import encode_jpeg
from vitrail.scores.statistics import Array
from vitrail.viz.colormap import colourise, to_image
from vitrail.viz.templating import png_uri, render

#: Findings with thumbnails, thumbnails of each, and classes in the table of the page.
SHOWN, THUMBNAILS, MAX_CLASSES = 8, 4, 100


def write_audit(
    folder: str | Path,
    out: str | Path | None = None,
    *,
    method: str | None = None,
    target: str | None = None,
    against: str | Path | None = None,
    per_class: int = 200,
    checks: int = 8,
    device: str = "cpu",
    advance: Callable[[str], None] = lambda _: None,
) -> tuple[Audit, Path]:
    """Audit a store of maps; write ``audit.html`` and ``audit.json``.

    Args:
        folder: What `vitrail.open_maps` takes.
        out: Folder of the files; by default the same.
        method: See `audit_maps`.
        target: See `audit_maps`.
        against: Another store of maps of the same images, for the drift.
        per_class: Most maps that are read of a class.
        checks: Number of maps that are computed again and checked, at about 120 forward passes each: those of the
            findings first, then spread over the classes.
        device: Device of the models for checks.
        advance: Called with the name of each step.

    Returns:
        The audit, and the path of the page.
    """
    store = open_maps(folder)
    images = AuditImages(store, device)
    advance("Maps")
    audit = audit_maps(
        store, method=method, target=target, masks=images.masks, per_class=per_class,
        against=None if against is None else open_maps(against),
    )  # fmt: skip
    if checks:
        advance("Checks")
        audit = replace(audit, checks=images.check(_rows_to_check(store, audit, checks)))
    advance("Page")
    page = render(
        "audit.html", audit=audit, manifest=store.manifest, picture=_map_uri, models=store.values("model"),
        findings=[(one, _thumbnails(images, audit, one)) for one in audit.findings[:SHOWN]],
        classes=audit.classes[:MAX_CLASSES], several=len({(one.model, one.dataset) for one in audit.classes}) > 1,
    )  # fmt: skip
    to = Path(out or folder)
    data = json.dumps(audit.to_dict(), indent=1, ensure_ascii=False)
    write_file(to / "audit.json", lambda file: file.write(f"{data}\n".encode()))
    return audit, write_file(to / "audit.html", lambda file: file.write(page.encode()))


def _row(store: MapStore, audit: Audit, image: str, one: Any) -> dict[str, Any]:
    where = {"method": audit.method, "class": one.label, "model": one.model or None, "dataset": one.dataset or None}
    return store.rows(image, **where, **({"target": audit.target} if audit.target else {}))[0]


def _rows_to_check(store: MapStore, audit: Audit, count: int) -> list[dict[str, Any]]:
    rows = [_row(store, audit, one.images[0], one) for one in audit.findings[: count // 2]]
    where = {"method": audit.method} | ({"target": audit.target} if audit.target else {})
    table = store.select(**where)
    rest = min(count - len(rows), table.num_rows)
    spread = table.take([i * table.num_rows // rest for i in range(rest)]) if rest else table.slice(0, 0)
    return rows + list(spread.to_pylist())


def _thumbnails(images: AuditImages, audit: Audit, finding: Finding) -> list[tuple[str, str]]:
    """Ids and data addresses of the images of a finding that can be read."""
    drawn = [(image, images.thumbnail(_row(images.store, audit, image, finding))) for image in finding.images]
    found = [(image, one) for image, one in drawn if one is not None][:THUMBNAILS]
    return [(image, f"data:image/jpeg;base64,{base64.b64encode(encode_jpeg(one)).decode()}") for image, one in found]


def _map_uri(share: Array) -> str:
    """A mean map or its deviation as the data address of a small PNG file, one pixel for each patch."""
    return png_uri(to_image((255 * colourise(share / max(float(share.max()), 1e-12))).astype(np.uint8)))
