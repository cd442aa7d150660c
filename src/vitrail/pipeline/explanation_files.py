"""Files of an explanation: overlays, maps, words and the manifest with everything needed to reproduce it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from vitrail.models.class_group import ClassGroup, target_rows
from vitrail.pipeline.explanation_data import ExplanationData
from vitrail.pipeline.explanation_drawing import draw_frames, draw_overlay, frame_rate
from vitrail.pipeline.prompt_words import PromptWords, prompt_records
from vitrail.pipeline.provenance import versions
from vitrail.pipeline.saved_files import JPEG_QUALITY, atomic_writes, saved_overlays
from vitrail.viz.clip import save_animation

UPSAMPLING = "linear along each axis, align_corners=False, then each map scaled to [0, 1] (signed maps to [-1, 1])"


def manifest(e: ExplanationData) -> dict[str, Any]:
    """Settings needed to reproduce this explanation, as JSON values."""
    probabilities, provenance = e.probabilities, e.provenance
    return {
        "method": e.method,
        "options": dict(e.options),
        "model": e.model,
        "weights_sha256": None if provenance is None else provenance.weights.hexdigest(),
        "inputs": None if provenance is None else list(provenance.inputs),
        "preprocess": None if provenance is None else dict(provenance.preprocess),
        "structure": dict(e.structure),
        "targets": _target_lists(e),
        "target_names": [[e.label(b, k) for k in range(e.maps.shape[1])] for b in range(e.maps.shape[0])],
        "probabilities": None if probabilities is None else probabilities.tolist(),
        "maps": {"shape": list(e.maps.shape), "dtype": str(e.maps.dtype), "upsampling": UPSAMPLING},
        "grid": list(e.grid.shape),
        "constant": e.constant.tolist(),
        "seconds": e.seconds,
        "device": str(e.maps.device),
        "overlays": e.overlay_names(),
        "versions": versions(),
    } | _optional_entries(e)


def _optional_entries(e: ExplanationData) -> dict[str, Any]:
    """Entries of the manifest for original images, groups of classes and checks, if there are any."""
    found: dict[str, Any] = {}
    geometries = [one.geometry for one in e.originals or ()]
    if any(geometries):
        found["geometry"] = [None if one is None else one.to_dict() for one in geometries]
    if e.signal is not None:
        units = [{"name": a.name, "unit": a.unit, "step": a.step, "values": a.values, "labels": a.labels}
                 for a in e.axes]  # fmt: skip
        found["axes"] = [{k: v for k, v in one.items() if v is not None} for one in units]
    if e.groups:
        found["groups"] = [{"name": g.name, "classes": list(g.indices)} for g in e.groups]
    if e.named_targets is not None:
        found["named_targets"] = [[one.to_dict() for one in row] for row in e.named_targets]
    if e.smoothing is not None:
        found["smoothing"] = e.smoothing.settings()
    if e.checks:
        found["checks"] = [{"image": b, "target": k, **c.to_dict()} for (b, k), c in e.checks.items()]
    return found


def _target_lists(e: ExplanationData) -> list[list[int | list[int]]] | None:
    """Class index of each target, or the list of a group's indices, as JSON values."""
    if e.targets is None:
        return None
    count = int(e.targets.max()) + 1 if e.logits is None else e.logits.shape[1]
    rows = target_rows(e.targets, e.groups, count)
    return [[list(one.indices) if isinstance(one, ClassGroup) else one for one in row] for row in rows]


def save_explanation(e: ExplanationData, folder: str | Path, original: bool = False) -> Path:
    """Write overlays, maps and manifest into a folder; see `vitrail.Explanation.save`."""
    from safetensors.torch import save as to_safetensors

    folder = Path(folder)
    tensors = {"maps": e.maps, "grid": e.grid, "constant": e.constant}
    tensors |= {k: v for k, v in (("targets", e.targets), ("logits", e.logits)) if v is not None}
    with atomic_writes(folder) as into:
        names = e.overlay_names()
        for i, name in enumerate(names):
            with into(name) as path:
                draw_overlay(e, *divmod(i, e.maps.shape[1])).save(path, format="PNG")
        animations = e.overlay_names(suffix="gif") if e.signal is not None and len(e.axes) == 3 else []
        for i, name in enumerate(animations):
            save_animation(draw_frames(e, *divmod(i, e.maps.shape[1])), folder / name, frame_rate(e))
        originals = e.overlay_names("overlay-original", "jpg") if original else []
        for i, name in enumerate(originals):
            with into(name) as path:
                drawn = draw_overlay(e, *divmod(i, e.maps.shape[1]), original=True)
                drawn.save(path, format="JPEG", quality=JPEG_QUALITY)
        if isinstance(e.text, PromptWords) and e.text.is_computed:
            with into("words.json") as path:
                records = json.dumps(prompt_records(e.text), ensure_ascii=False)
                path.write_text(records + "\n", encoding="utf-8")
        if e.of_texts:
            from vitrail.text.rendering import html, to_records

            with into("words.json") as path:
                path.write_text(json.dumps(to_records(e), ensure_ascii=False) + "\n", encoding="utf-8")
            with into("text.html") as path:
                path.write_text(html({e.method: e}), encoding="utf-8")
        with into("maps.safetensors") as path:
            path.write_bytes(to_safetensors({k: v.detach().cpu().contiguous() for k, v in tensors.items()}))
        for name in saved_overlays(folder) - {*names, *originals, *animations}:
            (folder / name).unlink(missing_ok=True)
        with into("manifest.json") as path:
            content = manifest(e) | {"overlays": [*names, *originals, *animations]}
            written = json.dumps(content, indent=2, ensure_ascii=False, default=str)
            path.write_text(written + "\n", encoding="utf-8")
    return folder
