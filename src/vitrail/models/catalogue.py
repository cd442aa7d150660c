"""The models of the papers by short names: which checkpoint each is, and how it wants its pictures.

A bare timm name stands for whatever weights that library prefers today, which for ViT-B/16 are not those of the papers
(AugReg, not the original ones); so every name here says which weights are meant. Means and deviations are written out:
a ViT and a DeiT differ in them, and feeding one with the other's lowers its accuracy without a word.
"""

from __future__ import annotations

from dataclasses import dataclass

from vitrail.models.preprocess import HALF, IMAGENET_MEAN, IMAGENET_STD


@dataclass(frozen=True)
class Entry:
    """A model of a paper.

    Attributes:
        timm: Name and tag of its weights in timm, which fetches them from its hub.
        hub: The same checkpoint, or the nearest there is, as a name for ``hf:``; "" if there is none.
        about: Who uses it.
        mean: What pictures are shifted by.
        std: And scaled by.
        grid: Patches down and across where the head reads them.
        width: Length of a patch's vector there.
        blocks: How many there are.
        params: Number of parameters, in millions.
        gmacs: Multiplications of a forward of one picture, in billions.
        swin: Whether it attends inside windows.
    """

    timm: str
    hub: str
    about: str
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
        """As `vitrail.load` takes it."""
        return f"timm:{self.timm}"


_VIT, _DEIT = (HALF, HALF), (IMAGENET_MEAN, IMAGENET_STD)

CATALOGUE: dict[str, Entry] = {
    "vit-b16": Entry(
        "vit_base_patch16_224.orig_in21k_ft_in1k", "google/vit-base-patch16-224",
        "ViT-B/16, the original weights: VTranM's and GradToken's tables, and the rows they quote", *_VIT,
        768, 12, 86.6, 17.6,
    ),
    "vit-b16-augreg": Entry(
        "vit_base_patch16_224.augreg2_in21k_ft_in1k", "", "ViT-B/16, the weights timm prefers today: ViT-CX took "
        "timm's of its day", *_VIT, 768, 12, 86.6, 17.6,
    ),
    "vit-l16": Entry(
        "vit_large_patch16_224.augreg_in21k_ft_in1k", "google/vit-large-patch16-224", "ViT-L/16: VTranM's table 3",
        *_VIT, 1024, 24, 304.3, 61.6,
    ),
    "vit-t16": Entry(
        "vit_tiny_patch16_224.augreg_in21k_ft_in1k", "", "ViT-Tiny/16: small enough for a laptop", *_VIT,
        192, 12, 5.7, 1.26,
    ),
    "deit-b": Entry(
        "deit_base_patch16_224.fb_in1k", "facebook/deit-base-patch16-224", "DeiT-B/16: VTranM's tables 2 and 3",
        *_DEIT, 768, 12, 86.6, 17.6,
    ),
    "deit-s": Entry(
        "deit_small_patch16_224.fb_in1k", "facebook/deit-small-patch16-224", "DeiT-S/16", *_DEIT, 384, 12, 22.1, 4.6,
    ),
    "deit-t": Entry(
        "deit_tiny_patch16_224.fb_in1k", "facebook/deit-tiny-patch16-224", "DeiT-T/16", *_DEIT, 192, 12, 5.7, 1.26,
    ),
    "deit-b-distilled": Entry(
        "deit_base_distilled_patch16_224.fb_in1k", "facebook/deit-base-distilled-patch16-224",
        "DeiT-B/16 with a distillation token: ViT-CX's tables", *_DEIT, 768, 12, 87.3, 17.7,
    ),
    "swin-b": Entry(
        "swin_base_patch4_window7_224.ms_in22k_ft_in1k", "microsoft/swin-base-patch4-window7-224",
        "Swin-B: ViT-CX's table 1, which does not say which weights", *_DEIT, 1024, 24, 87.8, 15.4, (7, 7), True,
    ),
}  # fmt: skip
"""Short names of the papers' models."""


def full_name(name: str) -> str:
    """The name a short one stands for; any other name is left as it is.

    Example:
        >>> full_name("vit-b16"), full_name("scenes")
        ('timm:vit_base_patch16_224.orig_in21k_ft_in1k', 'scenes')
    """
    return CATALOGUE[name].name if name in CATALOGUE else name


def short_name(name: str) -> str:
    """The short name that stands for a full one; any other name is left as it is.

    Example:
        >>> short_name("timm:vit_base_patch16_224.orig_in21k_ft_in1k"), short_name("timm:vit_base_patch16_224")
        ('vit-b16', 'timm:vit_base_patch16_224')
    """
    return next((short for short, entry in CATALOGUE.items() if entry.name == name), name)


def entry_of(name: str) -> Entry | None:
    """What is known of a model given by its short or full name."""
    return next((entry for entry in CATALOGUE.values() if entry.name == full_name(name)), None)
