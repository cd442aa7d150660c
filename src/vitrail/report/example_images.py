"""Pictures of cases: read from the data set again, with their maps kept by the run or made anew."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from vitrail.errors import VitrailError
from vitrail.methods import find
from vitrail.report.examples import ExampleCase
from vitrail.report.run import Run
from vitrail.viz.colormap import overlay, to_image

#: Longest side of a picture on the page, in pixels.
SIDE = 224


@dataclass(frozen=True, eq=False)
class ExampleImage:
    """A case with its pictures, as JPEG files in memory.

    Attributes:
        case: Which.
        says: What was explained, in words.
        picture: The picture as the model sees it, the object outlined where it is known.
        maps: By method the map over the picture; methods whose map could not be made are missing.
        reason: Why there are no pictures, or "".
    """

    case: ExampleCase
    says: str = ""
    picture: bytes = b""
    maps: dict[str, bytes] = field(default_factory=dict)
    reason: str = ""


def show(
    run: Run, cases: Sequence[ExampleCase], device: str = "cpu", advance: Callable[[], None] = lambda: None
) -> list[ExampleImage]:
    """Pictures of all cases; a case whose model or picture is not on this machine says so instead."""
    from vitrail.bench.context import open_context

    context = open_context(run.plan.model_dump_json(), device)
    found = []
    for case in cases:
        try:
            found.append(_show(run, context, case))
        except (VitrailError, OSError) as error:
            found.append(ExampleImage(case, reason=str(error).splitlines()[0]))
        advance()
    return found


def _show(run: Run, context: Any, case: ExampleCase) -> ExampleImage:
    from vitrail.bench.explainer import Explainer
    from vitrail.bench.ground_truth import prepare_ground_truth

    plan = run.plan
    numbers = {network.title: i for i, network in enumerate(plan.models)}
    model = context.model(numbers[case.model])
    if model.weights_hash != run.manifest["weights"][case.model]:
        return ExampleImage(case, reason=f"{case.model} has other weights on this machine than in the run")
    data = next(i for i, d in enumerate(plan.dataset) if d.title == case.dataset)
    images = context.images(data)
    truth = prepare_ground_truth(images.dataset, images.dataset.ids.index(case.image), model.preprocess,
                    context.same_classes(numbers[case.model], data))  # fmt: skip
    explained, probability = _explained(run, case)
    image = truth.image[None].to(context.device)
    seen: NDArray[np.uint8] = model.preprocess.picture(truth.image[None])[0]
    maps = {name: _kept(run, case, name, seen.shape[:2]) for name in case.scores}
    todo = [name for name, relevance in maps.items() if relevance is None]
    if todo:
        made, _ = Explainer(context, model, run.manifest["key"])([case.image], image, torch.tensor([[explained]]), todo)
        maps |= {name: one.maps[0, 0].float().cpu() for name, one in made.items()}
    files = {
        name: jpeg(overlay(seen, relevance.numpy(), _signed(name)))
        for name, relevance in maps.items() if relevance is not None
    }  # fmt: skip
    names = model.loaded.classes
    known = names[explained].split(",")[0] if names and explained < len(names) else f"class {explained}"
    mask = truth.mask_of(explained)
    return ExampleImage(case, f"{known} ({100 * probability:.0f} %)", jpeg(outlined(seen, mask)), files)


def _explained(run: Run, case: ExampleCase) -> tuple[int, float]:
    """The class that was explained, and its probability."""
    import polars as pl

    row = run.scores().filter(
        pl.col("model") == case.model, pl.col("dataset") == case.dataset, pl.col("image") == case.image,
        pl.col("target") == case.target, pl.col("protocol") == "explain", pl.col("score") == "probability",
    ).select("explained", "value").head(1).collect()  # fmt: skip
    return int(row["explained"][0]), float(row["value"][0])


def _kept(run: Run, case: ExampleCase, method: str, size: tuple[int, ...]) -> Tensor | None:
    """A map the run kept, at the picture's size; None where there is none."""
    if not run.plan.keep_maps:
        return None
    from safetensors import safe_open

    for path in sorted((run.folder / "parts").glob("part-*.safetensors")):
        with safe_open(str(path), framework="pt") as file:
            note = file.metadata()
            name = f"{method}/{case.target}"
            images = json.loads(note["images"])
            if case.image in images and name in file.keys() and _of(run, path.stem, case):  # noqa: SIM118
                grid = file.get_slice(name)[images.index(case.image)].float()
                if not bool(torch.isfinite(grid).all()):
                    return None
                return F.interpolate(grid[None, None], size=size[:2], mode="bilinear", align_corners=False)[0, 0]
    return None


def _of(run: Run, part: str, case: ExampleCase) -> bool:
    """Whether a part is about a case's model and data set."""
    model, data = (int(word[1:]) for word in part.split("-")[1:3])
    return run.plan.models[model].title == case.model and run.plan.dataset[data].title == case.dataset


def _signed(spec: str) -> bool:
    _, method, options = find(spec)
    return method.is_signed(options)


def outlined(picture: NDArray[np.uint8], mask: Tensor | None) -> NDArray[np.uint8]:
    """A picture with the edge of an object drawn in white on black.

    Args:
        picture: Bytes, shape (height, width, 3).
        mask: 0 ground, 255 ignore, anything else the object, shape (height, width); None draws nothing.
    """
    if mask is None:
        return picture
    inside = ((mask != 0) & (mask != 255)).float()[None, None]
    near, far = (F.max_pool2d(inside, 2 * r + 1, 1, r)[0, 0].bool().numpy() for r in (1, 2))
    drawn = picture.copy()
    drawn[far & ~near], drawn[near & ~inside[0, 0].bool().numpy()] = 0, 255
    return drawn


def jpeg(pixels: NDArray[np.uint8]) -> bytes:
    """Bytes of shape (height, width, 3) as a small JPEG file."""
    image = to_image(pixels)
    image.thumbnail((SIDE, SIDE))
    held = BytesIO()
    image.save(held, format="JPEG", quality=88, subsampling=0)
    return held.getvalue()
