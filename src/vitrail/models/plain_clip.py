"""PlainCLIP: a minimal dual encoder of images and captions."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.models.plain_vit import PlainBlock, PlainEncoder


class PlainCLIP(PlainEncoder):
    """Two transformers that map images and texts to unit vectors, compared by their scaled cosine.

    The image encoder reads a CLS token. The text encoder reads its first token; padding is masked. Arguments and
    outputs have the names of the CLIP models of Hugging Face.

    Example:
        >>> model = PlainCLIP(size=32, width=16, depth=1, heads=2, words=9, length=5, text_width=16, text_depth=1)
        >>> out = model(torch.tensor([[1, 3, 2, 0, 0]]), torch.zeros(2, 3, 32, 32))
        >>> out["logits_per_image"].shape, out["image_embeds"].shape
        (torch.Size([2, 1]), torch.Size([2, 64]))
    """

    def __init__(
        self,
        size: int = 128,
        patch: int = 8,
        width: int = 80,
        depth: int = 4,
        heads: int = 4,
        mlp: int = 2,
        words: int = 35,
        length: int = 12,
        text_width: int = 64,
        text_depth: int = 2,
        text_heads: int = 4,
        embedding: int = 64,
    ) -> None:
        embed = nn.Conv2d(3, width, patch, patch)
        super().__init__(embed, (size // patch) ** 2, width, depth, heads, mlp)
        self.projection = nn.Linear(width, embedding, bias=False)
        self.word_embed = nn.Embedding(words, text_width)
        self.text_position = nn.Parameter(torch.randn(1, length, text_width))
        self.text_blocks = nn.ModuleList(PlainBlock(text_width, text_heads, mlp) for _ in range(text_depth))
        self.text_norm, self.text_projection = nn.LayerNorm(text_width), nn.Linear(text_width, embedding, bias=False)
        self.logit_scale = nn.Parameter(torch.tensor(2.3))

    def get_input_embeddings(self) -> nn.Embedding:
        """The layer that makes the vectors of words."""
        return self.word_embed

    def get_image_features(self, pixel_values: Tensor) -> Tensor:
        """Map images, shape (b, 3, h, w), to embeddings, shape (b, d), not normalised."""
        return self.projection(self.encode(pixel_values)[:, 0])  # type: ignore[no-any-return]

    def get_text_features(self, input_ids: Tensor) -> Tensor:
        """Map numbers of words, shape (t, length), to embeddings, shape (t, d), not normalised."""
        x = self.word_embed(input_ids) + self.text_position[:, : input_ids.shape[1]]
        mask = (input_ids != 0)[:, None, None]
        for block in self.text_blocks:
            x = block(x, mask)
        return self.text_projection(self.text_norm(x)[:, 0])  # type: ignore[no-any-return]

    def forward(self, input_ids: Tensor, pixel_values: Tensor) -> dict[str, Tensor]:
        """Compare texts, shape (t, length), with images, shape (b, 3, h, w).

        Returns:
            ``logits_per_image``, shape (b, t); ``logits_per_text``, shape (t, b); and the unit vectors
            ``image_embeds``, shape (b, d), and ``text_embeds``, shape (t, d).
        """
        image = F.normalize(self.get_image_features(pixel_values), dim=-1)
        text = F.normalize(self.get_text_features(input_ids), dim=-1)
        logits = self.logit_scale.exp() * image @ text.T
        return {"logits_per_image": logits, "logits_per_text": logits.T, "image_embeds": image, "text_embeds": text}
