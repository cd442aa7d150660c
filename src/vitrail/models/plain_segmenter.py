"""PlainSegmenter: a minimal semantic segmenter, a vision transformer whose patches classify their own pixels."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.models.plain_vit import PlainEncoder


class PlainSegmenter(PlainEncoder):
    """A vision transformer in which every patch predicts the classes of its 4×4 cells.

    Example:
        >>> import torch
        >>> PlainSegmenter(size=32, width=16, depth=1)(torch.zeros(2, 3, 32, 32))["logits"].shape
        torch.Size([2, 13, 16, 16])
    """

    def __init__(
        self,
        size: int = 128,
        patch: int = 8,
        width: int = 80,
        depth: int = 3,
        heads: int = 4,
        mlp: int = 2,
        classes: int = 13,
    ) -> None:
        embed = nn.Conv2d(3, width, patch, patch)
        super().__init__(embed, (size // patch) ** 2, width, depth, heads, mlp, prefix=None)
        self.side, self.classes = size // patch, classes
        self.head = nn.Linear(width, 16 * classes)

    def forward(self, pixel_values: Tensor) -> dict[str, Tensor]:
        """Classify the pixels of images, shape (b, 3, h, w).

        Returns:
            ``logits`` of cells of a quarter of a patch, shape (b, classes, 4 * grid, 4 * grid).
        """
        x = self.head(self.encode(pixel_values))
        cells = x.transpose(1, 2).unflatten(2, (self.side, self.side))
        return {"logits": F.pixel_shuffle(cells, 4)}
