"""Deletion and insertion of single maps: the one place where figures ask for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from vitrail.errors import OptionError
from vitrail.explanation import Explanation
from vitrail.models import LoadedModel
from vitrail.scores.evaluator import Evaluator
from vitrail.scores.presets import PRESETS, LevelGrid

CANVASES = ("blur", "mean")


def deletion_insertion(
    about: LoadedModel,
    image: Tensor,
    found: Mapping[str, Explanation],
    k: int,
    *,
    step: int = 1792,
    canvas: str = "blur",
    batch: int = 32,
    advance: Callable[[int], None] = lambda _: None,
) -> dict[str, tuple[float, float]]:
    """Areas under the deletion and the insertion curve of each method's map of one image and one class.

    Args:
        about: The model.
        image: As the model takes it, shape (1, 3, height, width).
        found: The methods' explanations of it; their targets are classes.
        k: Which target.
        step: Pixels removed or put back at a time, of a picture of 224×224; of others the same share.
        canvas: What pixels are put back into: the picture under a "blur", or its "mean" colour.
        batch: Most pictures in a forward pass.
        advance: Called with the number of pictures the model has just been shown.
    """
    if canvas not in CANVASES:
        raise OptionError(f"canvas={canvas!r} is not one of {', '.join(map(repr, CANVASES))}")
    whole = PRESETS["vitcx"]
    kept = [c for c in whole.curves if c.name == "deletion" or c.fill == canvas]
    preset = replace(whole, curves=tuple(replace(c, grid=LevelGrid(step=step)) for c in kept))
    targets = next(iter(found.values())).targets
    assert targets is not None
    evaluate = Evaluator(about, [preset], batch=batch, advance=advance)
    maps = {name: e.maps[:, k] for name, e in found.items()}
    with torch.no_grad():
        records = evaluate(image, maps, predicted=targets[:, k])
    scores = {name: records.scores(preset, name) for name in maps}
    return {name: (float(s["deletion(mean)"][0]), float(s[f"insertion({canvas})"][0])) for name, s in scores.items()}
