"""What a model offers to explain: classes with probabilities, prompts with shares, detected boxes, found regions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.capture.frozen import frozen
from vitrail.capture.model_call import run_model
from vitrail.targets import prompt
from vitrail.targets.binding import bind_targets
from vitrail.targets.detections import read_detections
from vitrail.targets.output_reader import CallContext, OutputReader
from vitrail.web.page_targets import PageTarget
from vitrail.web.served_model import ServedModel
from vitrail.web.target_scores import target_probability

#: Smallest probability of a detection that is listed, and the most that are.
MIN_PROBABILITY, MAX_ENTRIES = 0.05, 10
#: Smallest number of patches of a region that is listed.
MIN_PATCHES = 3


def candidates(served: ServedModel, raw_input: Any, asked: Sequence[PageTarget]) -> dict[str, Any]:
    """List targets of an image, and the probabilities of those that are asked for.

    Returns:
        ``top``, most probable first, and ``asked``, in the given order.
    """
    if served.target_kind == "prompt":
        found = _prompts(served, raw_input, asked)
        order = sorted(found, key=lambda entry: -entry["probability"])
        return {"top": order, "asked": found, "classes": 0}
    output = _output(served, raw_input)
    list_found = _boxes if served.target_kind == "box" else _regions
    rows = list_found(served, output)
    known = {str(PageTarget(**_fields(row["target"]))): row for row in rows}
    return {"top": rows, "asked": [known.get(str(one)) or _entry(served, output, one) for one in asked],
            "classes": served.class_count}  # fmt: skip


def _output(served: ServedModel, raw_input: Any) -> OutputReader:
    inputs = served.model_inputs(raw_input)
    module = served.loaded.module
    with frozen(module), torch.inference_mode():
        output = run_model(module, inputs)
    return OutputReader(output, CallContext(module, served.loaded.classes, served.preprocess.size))


def _prompts(served: ServedModel, raw_input: Any, asked: Sequence[PageTarget]) -> list[dict[str, Any]]:
    if not asked:
        return []
    texts = [one.text or "" for one in asked]
    loaded, inputs, bound = bind_targets([[prompt(text) for text in texts]], served.loaded,
                                         served.model_inputs(raw_input))  # fmt: skip
    with frozen(loaded.module), torch.inference_mode():
        scores = bound(run_model(loaded.module, inputs))[0].double().softmax(-1)
    return [
        {"index": None, "target": one.to_json(), "name": one.name(served), "probability": float(share), "corners": None}
        for one, share in zip(asked, scores, strict=True)
    ]


def _boxes(served: ServedModel, output: OutputReader) -> list[dict[str, Any]]:
    height, width = served.preprocess.size
    rows = read_detections(output, MAX_ENTRIES, 0.0)[0]
    shown = [one for one in rows if one.probability >= MIN_PROBABILITY] or rows[:1]
    return [
        {"index": None, "target": PageTarget("box", query=one.query).to_json(), "name": one.name,
         "probability": one.probability, "corners": _shares(one.box, height, width)}
        for one in shown
    ]  # fmt: skip


def _shares(corners: tuple[float, float, float, float], height: int, width: int) -> list[float]:
    sides = (width, height, width, height)
    return [min(1.0, max(0.0, value / side)) for value, side in zip(corners, sides, strict=True)]


def _regions(served: ServedModel, output: OutputReader) -> list[dict[str, Any]]:
    """Labels that lead on some patches, each with its patches; the largest region, the background, comes last."""
    masks = output.query_masks()
    if masks is not None:
        return []
    rows, columns = served.plane
    means = F.adaptive_avg_pool2d(_probabilities(output.dense())[:1].float(), (rows, columns))[0]
    leading = means.argmax(0).flatten()
    found = []
    for label in sorted(set(leading.tolist())):
        patches = (leading == label).nonzero()[:, 0].tolist()
        if len(patches) < MIN_PATCHES:
            continue
        one = PageTarget("region", label=label, patches=tuple(patches))
        inside = float(target_probability(one.named(served).pin(output, 0), output)[0])
        found.append((len(patches), _row(one, served.class_name(label), inside, _extent(patches, rows, columns))))
    found.sort(key=lambda pair: (pair[0] > rows * columns // 2, -pair[1]["probability"]))
    return [row for _, row in found[:MAX_ENTRIES]]


def _probabilities(scores: Tensor) -> Tensor:
    return scores.softmax(1) if scores.shape[1] > 1 else scores


def _row(target: PageTarget, name: str, probability: float | None, corners: list[float] | None) -> dict[str, Any]:
    return {"index": None, "target": target.to_json(), "name": name, "probability": probability, "corners": corners}


def _extent(patches: Sequence[int], rows: int, columns: int) -> list[float]:
    """Left, top, right and bottom of some patches, as fractions.

    Example:
        >>> _extent([5, 6], 4, 4)
        [0.25, 0.25, 0.75, 0.5]
    """
    y, x = [p // columns for p in patches], [p % columns for p in patches]
    return [min(x) / columns, min(y) / rows, (max(x) + 1) / columns, (max(y) + 1) / rows]


def _entry(served: ServedModel, output: OutputReader, one: PageTarget) -> dict[str, Any]:
    """A target that is not listed, with its probability and its label."""
    pinned = one.named(served).pin(output, 0)
    corners = pinned.corners(output, 0)
    title = pinned.title(output)
    shown = None if corners is None else _shares(corners, 1, 1)
    label = getattr(pinned, "label", None)
    known = one.kind == "box" or (output.query_masks() is None and output.dense().shape[1] > 1)
    probability = float(target_probability(pinned, output)[0]) if known and isinstance(label, int) else None
    return _row(one, title, probability, shown)


def _fields(target: dict[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in target.items()}
