"""Figures of ViT-CX: deletion and insertion scores, masks and their features, impacts and coverage."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from vitrail.errors import OptionError, TargetError
from vitrail.methods.registry import choose, within
from vitrail.models import LoadedModel
from vitrail.tools.figures.mask_similarity import convert_images, feature_maps, load_compared, pairwise_cosines
from vitrail.tools.figures.method_columns import draw_comparison
from vitrail.tools.figures.prepare import (
    check_integer,
    explain_images,
    input_image,
    probe_without_target,
    select_methods,
)
from vitrail.tools.figures.registry import FigureInputs, register_figure
from vitrail.tools.figures.vitcx_data import (
    INSERTION_STARTS,
    MAPS_PER_ROW,
    attention_maps,
    deletion_insertion,
    explain_vit_cx,
    feature_kind,
    mask_index,
    masked_with_noise,
    most_similar_feature,
    select_masks,
    to_pixels,
)
from vitrail.viz.colormap import Array
from vitrail.viz.panels import (
    CELL,
    CHART_COLOURS,
    GAP,
    HEADING,
    INK,
    LABEL_WIDTH,
    LINE,
    MARGIN,
    QUIET,
    SMALL,
    add_axes,
    add_grid,
    annotate,
    colour_bar,
    colour_map,
    image_grid,
    new_figure,
    show,
    show_map,
    style_chart,
    wrap_text,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CITE = "xie2023vitcx"
COMPARED = ("transformer_attribution", "transformer_mm", "tam", "scorecam", "vit_cx")


@register_figure("vitcx-1", "ViT-CX and other methods, with deletion and insertion scores", CITE)
def draw_methods(
    given: FigureInputs,
    *,
    methods: Sequence[str] | str | None = None,
    step: int = 1792,
    canvas: str = "blur",
    quick: bool = False,
) -> Figure:
    """Draw maps of several methods with the areas under their deletion and insertion curves; the best are marked.

    Args:
        given: The model, images and targets.
        methods: Methods to compare; by default those of the paper that apply to the model.
        step: Pixels deleted or inserted at a time in an image of 224×224; the same share in images of other sizes.
        canvas: Image that pixels are inserted into: the image under a "blur", or its "mean" colour.
        quick: Use the options that make slow methods quick.
    """
    check_integer("step", step, 1)
    choose("canvas", canvas, INSERTION_STARTS)
    if callable(given.targets):
        raise TargetError("deletion and insertion need classes as targets, got a function")
    loaded, images, progress = given.loaded, given.images, given.progress
    explanations = explain_images(given, select_methods(loaded, images, methods, COMPARED, quick))
    scores: dict[tuple[int, int], dict[str, tuple[float, float]]] = {}
    progress.begin("Deletion and insertion", sum(e[next(iter(e))].maps.shape[1] for e in explanations))
    for i, group in enumerate(explanations):
        for k in range(next(iter(group.values())).maps.shape[1]):
            settings: dict[str, Any] = {"step": step, "canvas": canvas, "advance": progress.evaluated}
            scores[i, k] = deletion_insertion(loaded, images[i : i + 1], group, k, **settings)
            progress.step()

    def caption(i: int, k: int, name: str) -> str:
        # Ties are decided on rounded values, as printed.
        shown = {other: (f"{d:.2f}", f"{n:.2f}") for other, (d, n) in scores[i, k].items()}
        deletion, insertion = shown[name]
        lowest = "↓" if float(deletion) == min(float(s[0]) for s in shown.values()) else ""
        highest = "↑" if float(insertion) == max(float(s[1]) for s in shown.values()) else ""
        return f"Del {deletion}{lowest}  Ins {insertion}{highest}"

    start = "the blurred image" if canvas == "blur" else "the mean colour"
    note = f"Del: deletion AUC, mean colour (↓ lowest). Ins: insertion AUC into {start} (↑ highest)."
    return draw_comparison(explanations, caption, note)


@register_figure("vitcx-2", "attention maps, feature maps, and masks made from feature maps", CITE, scenes=1)
def draw_masks(
    given: FigureInputs,
    *,
    method: str = "vit_cx",
) -> Figure:
    """Draw five attention maps of the last heads, five feature maps, and five masks.

    The masks are evenly spaced in the order of impact, from highest to lowest; above each is the most similar feature
    map.

    Args:
        given: The model, images and targets.
        method: ViT-CX, optionally with options, such as "vit_cx:mode=paper".
    """
    explanations = explain_vit_cx(given, 1, method)
    loaded, images, aspect = given.loaded, given.images, given.aspect
    figure, axes = image_grid(3 * len(explanations), 1 + MAPS_PER_ROW, aspect, labels=True)
    for i, e in enumerate(explanations):
        attention_row, feature_row, mask_row = axes[3 * i : 3 * i + 3, 1:]
        show(axes[3 * i + 1, 0], input_image(e), "Input", label=wrap_text(e.label(0, 0), CELL * aspect, lines=3))
        for one, (title, attention) in zip(attention_row, attention_maps(loaded, images[i : i + 1]), strict=False):
            show(one, colour_map(attention), title)
        masks, impact = e.intermediates["masks"][0][0], e.intermediates["impact"][0][0][0].cpu()
        order = impact.argsort(descending=True)
        picked = order[torch.linspace(0, len(order) - 1, min(MAPS_PER_ROW, len(order))).round().long()].tolist()
        probe = probe_without_target(loaded, images[i : i + 1])
        features = probe.features(feature_kind(e.options["mode"], e.options.get("features")), stage=-2)[0].float().cpu()
        for column, m in enumerate(picked):
            channel = most_similar_feature(features, masks[m])
            show(feature_row[column], colour_map(features[channel]), f"channel {channel + 1}")
            show(mask_row[column], colour_map(masks[m], scale=1.0), f"impact {float(impact[m]):.2f}")
        for one, name in zip(axes[3 * i :, 1], ("attention", "feature maps", "masks"), strict=False):
            one.set_ylabel(name)
        colour_bar(axes[3 * i, -1], False)
    return figure


@register_figure("vitcx-4", "similarity of masks before clustering, optionally beside another model", CITE, scenes=16)
def draw_mask_similarity(
    given: FigureInputs,
    *,
    mode: str = "released",
    image: int = 0,
    compare: str | nn.Module | LoadedModel | None = None,
    compare_weights: str | None = None,
) -> Figure:
    """Draw a histogram of the cosines between all pairs of masks of one image, and of the means of several images.

    Args:
        given: The model, images and targets.
        mode: Mode of ViT-CX, which decides the features that masks are made from.
        image: Index of the image whose pairs are shown.
        compare: A second model, as a name that ``load`` takes or as an object. A model without attention, such as
            "torchvision:resnet50", gives the output of its last layer on a grid.
        compare_weights: File with the weights of ``compare``, if it is a name: safetensors, or a torch file of tensors.
    """
    loaded, images, progress = given.loaded, given.images, given.progress
    within("image", check_integer("image", image), len(images), "images")
    image = range(len(images))[image]
    if compare is None and compare_weights is not None:
        raise OptionError("compare_weights= needs the model: pass compare= too, such as 'torchvision:resnet50'")
    models = [(loaded, images)]
    if compare is not None:
        other = load_compared(compare, compare_weights)
        other.module.to(images.device)
        models.append((other, convert_images(images, loaded, other)))
    kind = feature_kind(mode)
    progress.begin("Comparing masks", len(models) * len(images))
    pairs: list[list[Array]] = []
    for model, model_images in models:
        pairs.append([])
        for one in model_images:
            features = feature_maps(model, one[None], kind)
            pairs[-1].append(pairwise_cosines(features, (int(model_images.shape[2]), int(model_images.shape[3]))))
            progress.step()
    names = [model.name.partition(".")[0] or type(model.module).__name__ for model, _ in models]
    panels = 2 if len(images) > 1 else 1
    figure = new_figure(0.05 + 3.15 * panels, 2.37 if compare is None else 2.57)
    title = "pairs of masks" + (f" of image {image + 1}" if panels > 1 else "")
    shown = [(title, "cosine of two masks", "share of pairs (%)", [cosines[image] for cosines in pairs])]
    if panels > 1:
        by_image = [np.array([p.mean() for p in cosines]) for cosines in pairs]
        shown += [(f"means of {len(images)} images", "mean cosine of an image's masks", "images (%)", by_image)]
    charts = add_grid(figure, 1, panels, (2.5, 1.6), 0.5, 0.32, (0.65, 0)).subplots(squeeze=False)[0]
    for i, (axes, (what, x, y, groups)) in enumerate(zip(charts, shown, strict=True)):
        counted = f"{len(groups[0]):,} {what}" if i == 0 and compare is None else what
        heading = counted if compare is not None else f"{counted}, mean {groups[0].mean():.2f}"
        _draw_histograms(style_chart(axes, heading, x, y), groups, names)
    if compare is not None:
        handles: Any = charts[0].containers
        means = [", ".join(f"{groups[i].mean():.2f}" for *_, groups in shown) for i in range(len(models))]
        labels = [f"{name}, mean {mean}" for name, mean in zip(names, means, strict=True)]
        figure.legend(handles, labels, loc="lower center", ncols=2, fontsize=SMALL, frameon=False)
    return figure


def _draw_histograms(axes: Any, groups: Sequence[Array], names: Sequence[str]) -> None:
    """Draw a histogram for each model, on common bins, with a dashed line at its mean."""
    low = float(np.floor(10 * min(values.min() for values in groups) - 0.5) / 10)
    edges = np.linspace(low, 1, 1 + int(np.clip(max(map(len, groups)), 10, 40)))
    for values, name, colour in zip(groups, names, CHART_COLOURS, strict=False):
        weights = np.full(len(values), 100 / len(values))
        alpha = 1.0 if len(groups) == 1 else 0.6
        axes.hist(values, edges, weights=weights, color=colour, ec=colour, lw=0.3, alpha=alpha, label=name)
        axes.axvline(values.mean(), color=INK, linewidth=0.8, linestyle=(0, (4, 2)))
    axes.set_xlim(low, 1)
    axes.locator_params(nbins=5)


@register_figure("vitcx-5", "masked images, with and without noise, and plain and debiased impact", CITE, scenes=1)
def draw_impacts(
    given: FigureInputs,
    *,
    masks: Sequence[int] | int | None = None,
    method: str = "vit_cx",
) -> Figure:
    """Draw the masked image, the same with noise on what the mask hides, and both impacts of a few masks.

    Args:
        given: The model, images and targets.
        masks: Indices of masks, from 0; by default those whose impact debiasing lowers most and raises most, and, of
            the rest, those with the highest and the lowest debiased impact.
        method: ViT-CX, optionally with options, such as "vit_cx:mode=paper".
    """
    explanations, images = explain_vit_cx(given, 1, method), given.images
    if not explanations[0].options["debias"]:
        raise OptionError("debias=False adds no noise: use a variant of vit_cx with debias=True")
    asked = masks if masks is None or isinstance(masks, Sequence) else [masks]
    chosen = [select_masks(e) if asked is None else [mask_index(m, e) for m in asked] for e in explanations]
    columns, tall = 1 + max(map(len, chosen)), CELL * given.aspect
    step, head, left = 2 * (tall + GAP) + LINE + 0.85, MARGIN + LINE, MARGIN + LABEL_WIDTH
    figure = new_figure(left + columns * (CELL + GAP) + 0.1, head + len(explanations) * step)
    for i, (e, picked) in enumerate(zip(explanations, chosen, strict=True)):
        top = head + i * step
        masked, noisy = add_axes(add_grid(figure, 2, columns, (CELL, tall), left, top))
        places = add_grid(
            figure, 1, columns, (CELL - 0.36, 0.62), left + 0.32, top + 2 * (tall + GAP) + 0.04, (0.42, 0)
        )
        charts = add_axes(places)[0]
        show(masked[0], input_image(e), "Input", label=wrap_text(e.label(0, 0), tall, lines=3))
        for one, text in ((noisy[0], "noise on what\nthe mask hides"), (charts[0], "impact on\nthe class")):
            one.text(0.98, 0.5, text, ha="right", va="center", fontsize=SMALL, color=QUIET)
        plain, debiased = (e.intermediates[name][0][0][0].cpu() for name in ("impact_plain", "impact"))
        low = min(0.0, float(plain.min()), float(debiased.min()))
        high = max(float(plain.max()), float(debiased.max()), 1e-6)
        for column, m in enumerate(picked, 1):
            mask = e.intermediates["masks"][0][0][m]
            show(masked[column], to_pixels(e, images[i] * mask.to(images)), f"mask {m + 1}")
            show(noisy[column], to_pixels(e, masked_with_noise(e, images[i], m)))
            chart = style_chart(charts[column])
            values = [float(plain[m]), float(debiased[m])]
            chart.bar((0, 1), values, width=0.6, color=(QUIET, CHART_COLOURS[1]))
            for x, value in enumerate(values):
                annotate(chart, x, max(value, 0), f"{value:.2f}")
            chart.set(xlim=(-0.6, 1.6), ylim=(low * 1.1, high * 1.3))
            chart.set_xticks((0, 1), ("plain", "debiased"))
    return figure


@register_figure("vitcx-6", "coverage of pixels by masks, and the map before and after its correction", CITE, scenes=2)
def draw_coverage(
    given: FigureInputs,
    *,
    method: str = "vit_cx",
) -> Figure:
    """Draw the coverage of pixels by all masks, the impact-weighted sum of masks, and that sum divided by coverage.

    Args:
        given: The model, images and targets.
        method: ViT-CX, optionally with options, such as "vit_cx:mode=paper".
    """
    explanations, aspect = explain_vit_cx(given, None, method), given.aspect
    if not explanations[0].options["coverage"]:
        raise OptionError("coverage=False has no corrected map: use a variant of vit_cx with coverage=True")
    rows = [(e, k) for e in explanations for k in range(e.maps.shape[1])]
    figure, axes = image_grid(len(rows), 4, aspect, cell=1.4, lines=0)
    for row, (e, k) in zip(axes, rows, strict=True):
        image = input_image(e)
        masks, weights = e.intermediates["masks"][0][0], e.intermediates["impact"][0][0][k].cpu()
        uncorrected = (weights[:, None, None] * masks).sum(0)
        show(row[0], image, label=wrap_text(e.label(0, k), 1.4 * aspect, lines=3))
        for one, relevance in zip(row[1:], (e.intermediates["coverage"][0][0], uncorrected, e.maps[0, k]), strict=True):
            show_map(one, image, relevance)
    for one, title in zip(axes[0], ("Input", "Coverage", "Uncorrected", "Corrected"), strict=True):
        one.set_title(title, fontsize=HEADING, pad=2.5)
    colour_bar(axes[0, -1], False)
    return figure
