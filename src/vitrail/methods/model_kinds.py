"""Kinds of models and inputs that decide which methods apply."""

from __future__ import annotations

from vitrail.capture.model_structure import UNCHAINED_KINDS, ModelStructure

#: Axes of the map of an image.
IMAGE_AXES = ("height", "width")
#: The columns of the applicability table.
MODEL_KINDS = ("CLS", "distilled", "registers", "mean", "pool", "Swin", "text")


def is_signal(structure: ModelStructure) -> bool:
    """Whether what is explained lies on axes and is no image: a video, sound, a series or features."""
    return structure.axes not in ((), IMAGE_AXES)


def why_unchained(structure: ModelStructure) -> str:
    """Why the attention of a model forms no chain."""
    if structure.kind == "windowed" and is_signal(structure):
        return (
            "attends to a part of its tokens at a time (inside windows, over time and space in turn, or each variable "
            "alone), so no attention matrix connects all its patches"
        )
    mixed = next((check.detail for check in structure.failed if structure.kind == "unseen"), None)
    return UNCHAINED_KINDS[structure.kind] + ("" if mixed is None else f" ({mixed})")


def kind_of(structure: ModelStructure) -> str:
    """A model's kind among ``MODEL_KINDS``; every model that is not a plain encoder counts as Swin."""
    if structure.kind != "plain":
        return "Swin"
    layout = structure.layout
    if layout.grid is None:
        return "text"
    if structure.pooled:
        return "pool"
    if layout.readout in ("mean", "all"):
        return "mean"
    if layout.readout == "distilled":
        return "distilled"
    return "registers" if (layout.prefix or 0) > 1 else "CLS"
