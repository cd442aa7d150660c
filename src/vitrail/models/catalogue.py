"""Short names for the models of the papers: the checkpoint and the normalisation of each.

A bare timm name stands for the weights that timm prefers today. For ViT-B/16 these are the AugReg weights, not the
original ones that the papers use, so each entry names its weights. Mean and standard deviation are stored here as well:
ViT and DeiT use different ones, and the wrong ones lower the accuracy without an error.
"""

from __future__ import annotations

from dataclasses import dataclass

from vitrail.models.preprocess import HALF, IMAGENET_MEAN, IMAGENET_STD


@dataclass(frozen=True)
class CatalogueEntry:
    """A model used in one of the papers.

    Attributes:
        timm: Name and tag of the weights in timm, which downloads them from the Hugging Face hub.
        hub: The same or the closest checkpoint as a name for ``hf:``; "" if there is none.
        description: The model and the tables that use it.
        mean: Mean of each channel.
        std: Standard deviation of each channel.
        width: Embedding dimension of the last block.
        blocks: Number of transformer blocks.
        params: Number of parameters, in millions.
        gmacs: Multiply-accumulate operations of a forward pass on one image, in billions.
        grid: Rows and columns of patches in the last block.
        swin: Whether the model uses windowed attention.
    """

    timm: str
    hub: str
    description: str
    mean: tuple[float, ...]
    std: tuple[float, ...]
    width: int
    blocks: int
    params: float
    gmacs: float
    grid: tuple[int, int] = (14, 14)
    swin: bool = False

    @property
    def name(self) -> str:
        """Full name, as `vitrail.load` takes it."""
        return f"timm:{self.timm}"


_VIT, _DEIT = (HALF, HALF), (IMAGENET_MEAN, IMAGENET_STD)

CATALOGUE: dict[str, CatalogueEntry] = {
    "vit-b16": CatalogueEntry(
        "vit_base_patch16_224.orig_in21k_ft_in1k", "google/vit-base-patch16-224",
        "ViT-B/16, original weights: tables of VTranM and GradToken, and the results they quote", *_VIT,
        768, 12, 86.6, 17.6,
    ),
    "vit-b16-augreg": CatalogueEntry(
        "vit_base_patch16_224.augreg2_in21k_ft_in1k", "", "ViT-B/16, timm's current default weights; ViT-CX used the "
        "default of its time", *_VIT, 768, 12, 86.6, 17.6,
    ),
    "vit-l16": CatalogueEntry(
        "vit_large_patch16_224.augreg_in21k_ft_in1k", "google/vit-large-patch16-224", "ViT-L/16: VTranM, table 3",
        *_VIT, 1024, 24, 304.3, 61.6,
    ),
    "vit-t16": CatalogueEntry(
        "vit_tiny_patch16_224.augreg_in21k_ft_in1k", "", "ViT-Tiny/16: small enough for a laptop", *_VIT,
        192, 12, 5.7, 1.26,
    ),
    "deit-b": CatalogueEntry(
        "deit_base_patch16_224.fb_in1k", "facebook/deit-base-patch16-224", "DeiT-B/16: VTranM, tables 2 and 3",
        *_DEIT, 768, 12, 86.6, 17.6,
    ),
    "deit-s": CatalogueEntry(
        "deit_small_patch16_224.fb_in1k", "facebook/deit-small-patch16-224", "DeiT-S/16", *_DEIT, 384, 12, 22.1, 4.6,
    ),
    "deit-t": CatalogueEntry(
        "deit_tiny_patch16_224.fb_in1k", "facebook/deit-tiny-patch16-224", "DeiT-T/16", *_DEIT, 192, 12, 5.7, 1.26,
    ),
    "deit-b-distilled": CatalogueEntry(
        "deit_base_distilled_patch16_224.fb_in1k", "facebook/deit-base-distilled-patch16-224",
        "DeiT-B/16 with a distillation token: tables of ViT-CX", *_DEIT, 768, 12, 87.3, 17.7,
    ),
    "swin-b": CatalogueEntry(
        "swin_base_patch4_window7_224.ms_in22k_ft_in1k", "microsoft/swin-base-patch4-window7-224",
        "Swin-B: ViT-CX, table 1, which does not name the weights", *_DEIT, 1024, 24, 87.8, 15.4, (7, 7), True,
    ),
}  # fmt: skip
"""Models of the papers, by short name."""


def full_name(name: str) -> str:
    """Full name of a model given by its short name; other names are returned unchanged.

    Example:
        >>> full_name("vit-b16"), full_name("scenes")
        ('timm:vit_base_patch16_224.orig_in21k_ft_in1k', 'scenes')
    """
    return CATALOGUE[name].name if name in CATALOGUE else name


def short_name(name: str) -> str:
    """Short name of a model given by its full name; other names are returned unchanged.

    Example:
        >>> short_name("timm:vit_base_patch16_224.orig_in21k_ft_in1k"), short_name("timm:vit_base_patch16_224")
        ('vit-b16', 'timm:vit_base_patch16_224')
    """
    return next((short for short, entry in CATALOGUE.items() if entry.name == name), name)


def catalogue_entry(name: str) -> CatalogueEntry | None:
    """Entry of a model given by its short or full name, or None."""
    return next((entry for entry in CATALOGUE.values() if entry.name == full_name(name)), None)
