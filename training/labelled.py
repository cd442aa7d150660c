"""A model that is also asked what covers each of its patches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from training.net import TrainedViT


class LabelledViT(TrainedViT):
    """A ``TrainedViT`` with a second head, of use in training alone, that names what covers each patch.

    Tokens exchange what they know from block to block, so that after a few blocks every token could tell of every
    thing in the picture. Two things keep them to what is theirs. After each block but the first, each patch has to name
    the class it shows. And the readout can be kept from looking at some things' patches: what it still says of these
    things it could only know from others that talk of them.

    Args:
        architecture: The arguments of ``PlainViT``.
    """

    def __init__(self, architecture: Mapping[str, Any]) -> None:
        super().__init__(architecture)
        self.names = nn.Linear(self.head.in_features, self.head.out_features + 1)
        nn.init.trunc_normal_(self.names.weight, std=0.02)
        nn.init.zeros_(self.names.bias)

    def study(self, images: Tensor, seen: Tensor) -> tuple[Tensor, Tensor]:
        """Answers to a picture and to each of its patches.

        Args:
            images: Shape (b, 3, h, w).
            seen: Which patches the readout may look at, shape (b, patches).

        Returns:
            Logits, shape (b, classes), and for each block but the first the logits of what covers each patch, or none
            of the classes, shape ((depth - 1) * b, patches, classes + 1).
        """
        x, prefix = self.tokens(images), self.prefix.shape[1]
        looked = None if self.pool else F.pad(seen, (prefix, 0), value=True)
        after = []
        for block in self.blocks:
            x = block(x, looked)
            after.append(x[:, prefix:])
        patches = torch.cat(after[1:])
        names = self.names(F.layer_norm(patches, patches.shape[-1:]))
        if not self.pool:
            return self.read(x), names
        share = seen / seen.sum(1, keepdim=True).clamp_min(1)
        return self.head((share[:, None] @ self.norm(x)).squeeze(1)), names
