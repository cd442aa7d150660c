"""The figures of ViT-CX: comparison by deletion and insertion, masks and where they come from, and its corrections."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from vitrail.errors import NotApplicableError, OptionError, TargetError
from vitrail.figures.canvas import (
    BAR,
    CELL,
    FIRST,
    GAP,
    HEADING,
    INK,
    LINE,
    MARGIN,
    QUIET,
    SECOND,
    SIDE,
    SMALL,
    Canvas,
    CanvasGrid,
    overlaid,
    painted,
    remark_on,
)
from vitrail.figures.compare import comparison
from vitrail.figures.faithfulness import CANVASES, deletion_insertion
from vitrail.figures.prepare import applicable, asked, explained, label_of, picture_of, probe, whole_number
from vitrail.figures.registry import Progress, figure
from vitrail.figures.vitcx_masks import (
    FIVE,
    attention_maps,
    kind_of_features,
    masked,
    masks_of,
    most_like,
    numbered,
    telling,
)
from vitrail.methods.registry import choose, within
from vitrail.models import LoadedModel
from vitrail.targets import Target
from vitrail.viz.colormap import Array

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CITE = "xie2023vitcx"
COMPARED = ("transformer_attribution", "transformer_mm", "tam", "scorecam", "vit_cx")


@figure("vitcx-1", "ViT-CX beside other methods, with deletion and insertion below each map", CITE)
def compared(
    about: LoadedModel,
    images: Tensor,
    targets: Target = None,
    *,
    methods: Sequence[str] | str | None = None,
    step: int = 1792,
    canvas: str = "blur",
    quick: bool = False,
    progress: Progress | None = None,
) -> Figure:
    """Maps of several methods, each with the areas under its deletion and insertion curve; the best ones are marked.

    Args:
        about: The model.
        images: As the model takes them, shape (b, 3, height, width).
        targets: Classes, as for ``explain``.
        methods: Which methods; by default those of the paper that apply to the model.
        step: Pixels removed or put back at a time, of a picture of 224×224; of others the same share.
        canvas: What pixels are put back into: the picture under a "blur", or the "mean" colour.
        quick: With the options that make slow methods quick.
        progress: Is told how far the work is.
    """
    progress = progress or Progress()
    whole_number("step", step, 1)
    choose("canvas", canvas, CANVASES)
    if callable(targets):
        raise TargetError("deletion and insertion follow the probability of a class: give classes, not a function")
    rows = asked(about, images, targets)
    found = explained(about, images, rows, applicable(about, images, methods, COMPARED, quick), progress)
    scores: dict[tuple[int, int], dict[str, tuple[float, float]]] = {}
    progress.begin("Deleting and inserting", sum(e[next(iter(e))].maps.shape[1] for e in found))
    for i, group in enumerate(found):
        for k in range(next(iter(group.values())).maps.shape[1]):
            settings: dict[str, Any] = {"step": step, "canvas": canvas, "advance": progress.looked}
            scores[i, k] = deletion_insertion(about, images[i : i + 1], group, k, **settings)
            progress.step()

    def remark(i: int, k: int, name: str) -> str:
        shown = {other: (f"{d:.2f}", f"{n:.2f}") for other, (d, n) in scores[i, k].items()}  # equal if they look equal
        deletion, insertion = shown[name]
        lowest = "↓" if float(deletion) == min(float(s[0]) for s in shown.values()) else ""
        highest = "↑" if float(insertion) == max(float(s[1]) for s in shown.values()) else ""
        return f"Del {deletion}{lowest}  Ins {insertion}{highest}"

    into = "a blurred picture" if canvas == "blur" else "the mean colour"
    note = f"Del: area under deletion to the mean colour, ↓ lowest. Ins: area under insertion into {into}, ↑ highest."
    return comparison(found, remark, note)


@figure("vitcx-2", "attention maps, feature maps, and the masks made of these", CITE, scenes=1)
def sources(
    about: LoadedModel,
    images: Tensor,
    targets: Target = None,
    *,
    method: str = "vit_cx",
    progress: Progress | None = None,
) -> Figure:
    """Five maps of each kind: attention of the last heads, feature maps, and the masks these were joined into.

    The masks are spread evenly from the one with the highest impact to the one with the lowest; above each is the
    feature map most like it.

    Args:
        about: The model.
        images: As the model takes them, shape (b, 3, height, width).
        targets: One class an image, as for ``explain``.
        method: ViT-CX, with options if need be: "vit_cx:mode=paper".
        progress: Is told how far the work is.
    """
    found = masks_of(about, images, targets, progress, 1, method)
    tall = CELL * images.shape[2] / images.shape[3]
    line, head = LINE + 0.05, MARGIN + LINE + 0.05
    left = MARGIN + SIDE + CELL + 0.12 + SIDE
    each = 3 * (tall + line)
    height = head + len(found) * (each + 0.1) - 0.1 - LINE + MARGIN
    sheet = Canvas(left + FIVE * (CELL + GAP) - GAP + BAR + MARGIN, height)
    for i, e in enumerate(found):
        grid = CanvasGrid(left, head + i * (each + 0.1), 3, FIVE, CELL, tall, down=line)
        picture = picture_of(e)
        box = (MARGIN + SIDE, grid[1, 0][1], CELL, tall)
        sheet.picture(box, picture)
        sheet.over(box, "Input", SMALL)
        sheet.beside(box, label_of(e, 0))
        for row, name in enumerate(("attention", "feature maps", "masks")):
            sheet.beside(grid[row, 0], name)
        for column, (title, one) in enumerate(attention_maps(about, images[i : i + 1])):
            sheet.picture(grid[0, column], painted(one))
            sheet.over(grid[0, column], title, SMALL)
        masks, impact = e.parts["masks"][0][0], e.parts["impact"][0][0][0].cpu()
        order = impact.argsort(descending=True)
        picked = order[torch.linspace(0, len(order) - 1, min(FIVE, len(order))).round().long()].tolist()
        features = (
            probe(about, images[i : i + 1]).features(kind_of_features(e.options["mode"]), stage=-2)[0].float().cpu()
        )
        for column, m in enumerate(picked):
            channel = most_like(features, masks[m])
            sheet.picture(grid[1, column], painted(features[channel]))
            sheet.over(grid[1, column], f"channel {channel + 1}", SMALL)
            sheet.picture(grid[2, column], painted(masks[m], most=1.0))
            sheet.over(grid[2, column], f"impact {float(impact[m]):.2f}", SMALL)
        sheet.bars(grid.right, grid.top, tall, [False])
    return sheet.figure


@figure("vitcx-4", "how alike masks are before clustering", CITE, scenes=16)
def alike(
    about: LoadedModel,
    images: Tensor,
    targets: Target = None,  # noqa: ARG001
    *,
    mode: str = "released",
    image: int = 0,
    progress: Progress | None = None,
) -> Figure:
    """Cosines between every two masks of one image; of several images also their means, one for each.

    Args:
        about: The model.
        images: As the model takes them, shape (b, 3, height, width).
        targets: Not needed: masks do not depend on a class.
        mode: Of ViT-CX: which feature map masks are made of.
        image: Which image's pairs are shown.
        progress: Is told how far the work is.
    """
    from vitrail.methods._masks import similarity, stretched

    progress = progress or Progress()
    within("image", whole_number("image", image), len(images), "images")
    image = range(len(images))[image]
    size = (int(images.shape[2]), int(images.shape[3]))
    progress.begin("Comparing masks", len(images))
    pairs: list[Array] = []
    for one in images:
        looking = probe(about, one[None])
        cosines = similarity(stretched(looking.features(kind_of_features(mode), stage=-2)[0], size, looking.pieces))
        first, second = torch.triu_indices(len(cosines), len(cosines), 1)
        if not len(first):
            raise NotApplicableError("an image has fewer than two feature maps that vary: nothing to compare")
        pairs.append(cosines[first, second].cpu().numpy())
        progress.step()
    panels = 2 if len(pairs) > 1 else 1
    wide, tall, left = 2.5, 1.6, 0.5
    sheet = Canvas(left + panels * (wide + 0.65) - 0.65 + 0.2, 0.32 + tall + 0.45)
    means = np.array([p.mean() for p in pairs])
    name = f"{len(pairs[image]):,} pairs of masks" + (f" of image {image + 1}" if panels > 1 else "")
    shown = [(name, "cosine of two masks", "share of pairs (%)", pairs[image], FIRST)]
    if panels > 1:
        shown += [(f"means of {len(pairs)} images", "mean cosine of an image's masks", "images (%)", means, SECOND)]
    for i, (title, x, y, values, colour) in enumerate(shown):
        axes = sheet.chart((left + i * (wide + 0.65), 0.32, wide, tall), f"{title}, mean {values.mean():.2f}", x, y)
        low = float(np.floor(10 * values.min() - 0.5) / 10)
        edges = np.linspace(low, 1, 1 + int(np.clip(len(values), 10, 40)))
        axes.hist(values, edges, weights=np.full(len(values), 100 / len(values)), color=colour, ec=colour, lw=0.3)
        axes.axvline(values.mean(), color=INK, linewidth=0.8, linestyle=(0, (4, 2)))
        axes.set_xlim(low, 1)
        axes.locator_params(nbins=5)
    return sheet.figure


@figure("vitcx-5", "the plain and the debiased impact of a few masks", CITE, scenes=1)
def impacts(
    about: LoadedModel,
    images: Tensor,
    targets: Target = None,
    *,
    masks: Sequence[int] | int | None = None,
    method: str = "vit_cx",
    progress: Progress | None = None,
) -> Figure:
    """The picture behind each mask, and both scores as bars.

    Args:
        about: The model.
        images: As the model takes them, shape (b, 3, height, width).
        targets: One class an image, as for ``explain``.
        masks: Which masks, by number from 0; by default those that debiasing lowers most and raises most, and among
            the rest the ones with the highest and the lowest debiased impact.
        method: ViT-CX, with options if need be: "vit_cx:mode=paper".
        progress: Is told how far the work is.
    """
    found = masks_of(about, images, targets, progress, 1, method)
    tall = CELL * images.shape[2] / images.shape[3]
    asked_for = masks if masks is None or isinstance(masks, Sequence) else [masks]
    chosen = [telling(e) if asked_for is None else [numbered(m, e) for m in asked_for] for e in found]
    columns = 1 + max(map(len, chosen))
    step, head, high = tall + LINE + 0.85, MARGIN + LINE + 0.05, 0.62
    left = MARGIN + SIDE
    sheet = Canvas(left + columns * (CELL + GAP) - GAP + 0.15, head + len(found) * step + 0.05)
    for i, (e, picked) in enumerate(zip(found, chosen, strict=True)):
        grid = CanvasGrid(left, head + i * step, 1, columns, CELL, tall)
        picture = picture_of(e)
        sheet.beside(grid[0, 0], label_of(e, 0))
        sheet.picture(grid[0, 0], picture)
        sheet.over(grid[0, 0], "Input", SMALL)
        plain, debiased = (e.parts[name][0][0][0].cpu() for name in ("impact_plain", "impact"))
        low = min(0.0, float(plain.min()), float(debiased.min()))
        most = max(float(plain.max()), float(debiased.max()), 1e-6)
        for column, m in enumerate(picked, 1):
            box = grid[0, column]
            sheet.picture(box, masked(picture, e.parts["masks"][0][0][m]))
            sheet.over(box, f"mask {m + 1}", SMALL)
            axes = sheet.chart((box[0] + 0.32, grid.bottom + 0.1, CELL - 0.36, high))
            values = [float(plain[m]), float(debiased[m])]
            axes.bar((0, 1), values, width=0.6, color=(QUIET, SECOND))
            for x, value in enumerate(values):
                axes.annotate(f"{value:.2f}", (x, max(value, 0)), xytext=(0, 1.5), textcoords="offset points",
                              ha="center", fontsize=SMALL, color=INK)  # fmt: skip
            axes.set_ylim(low * 1.1, most * 1.3)
            axes.set_xlim(-0.6, 1.6)
            axes.set_xticks((0, 1), ("plain", "debiased"))
        middle = grid.bottom + 0.1 + high / 2
        sheet.words(left + CELL - 0.02, middle, "impact on\nthe class", SMALL, ha="right", color=QUIET)
    return sheet.figure


@figure("vitcx-6", "how often masks cover a pixel, and the map before and after that is corrected", CITE, scenes=2)
def coverage(
    about: LoadedModel,
    images: Tensor,
    targets: Target = None,
    *,
    method: str = "vit_cx",
    progress: Progress | None = None,
) -> Figure:
    """Coverage of the pixels by all masks, the sum of masks by impact, and that sum divided by coverage.

    Args:
        about: The model.
        images: As the model takes them, shape (b, 3, height, width).
        targets: As for ``explain``.
        method: ViT-CX, with options if need be: "vit_cx:mode=paper".
        progress: Is told how far the work is.
    """
    found = masks_of(about, images, targets, progress, None, method)
    if not found[0].options["coverage"]:
        raise OptionError("with coverage=False there is no corrected map to show")
    rows = [(e, k) for e in found for k in range(e.maps.shape[1])]
    cell = CELL + 0.2
    tall = cell * images.shape[2] / images.shape[3]
    head = MARGIN + LINE + 0.06
    grid = CanvasGrid(MARGIN + SIDE, head, len(rows), 4, cell, tall)
    sheet = Canvas(grid.right + BAR + MARGIN, grid.bottom + MARGIN)
    for row, (e, k) in enumerate(rows):
        picture = picture_of(e)
        masks, weights = e.parts["masks"][0][0], e.parts["impact"][0][0][k].cpu()
        bare = (weights[:, None, None] * masks).sum(0)
        sheet.beside(grid[row, 0], label_of(e, k))
        sheet.picture(grid[row, 0], picture)
        for column, one in enumerate((e.parts["coverage"][0][0], bare, e.maps[0, k]), 1):
            sheet.picture(grid[row, column], overlaid(picture, one), remark_on(one))
    for box, title in zip(grid, ("Input", "Coverage", "Not corrected", "Corrected"), strict=False):
        sheet.over(box, title, HEADING)
    sheet.bars(grid.right, head, tall, [False])
    return sheet.figure
