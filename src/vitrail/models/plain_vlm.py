"""PlainVLM: a minimal vision-language decoder."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from vitrail.errors import InputError
from vitrail.models.plain_vit import PlainBlock

#: Numbers of the words that stand for padding and for a patch of the image.
PAD, IMAGE = 0, 1


class PlainVLM(nn.Module):
    """A patch encoder, a projector, and causal decoder blocks over image tokens and words.

    The words contain one image token (number 1) for each patch, usually in front of the question. Their vectors are
    replaced by the projected patches. Every token attends to itself and to earlier ones. Arguments and outputs have the
    names of the vision-language models of Hugging Face.

    Example:
        >>> model = PlainVLM(size=32, width=16, depth=1, heads=2, words=9, length=6, text_depth=1)
        >>> words = torch.tensor([[1] * 16 + [2, 5, 6]])
        >>> model(words, torch.zeros(1, 3, 32, 32))["logits"].shape
        torch.Size([1, 19, 9])
    """

    def __init__(
        self,
        size: int = 128,
        patch: int = 8,
        width: int = 96,
        depth: int = 4,
        heads: int = 6,
        mlp: int = 2,
        words: int = 50,
        length: int = 20,
        text_depth: int = 3,
    ) -> None:
        super().__init__()
        self.grid = (size // patch, size // patch)
        self.embed = nn.Conv2d(3, width, patch, patch)
        self.position = nn.Parameter(torch.randn(1, (size // patch) ** 2, width))
        self.blocks = nn.Sequential(*(PlainBlock(width, heads, mlp) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.projector = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, width))
        self.word_embed = nn.Embedding(words, width)
        self.text_position = nn.Parameter(torch.randn(1, length, width))
        self.text_blocks = nn.ModuleList(PlainBlock(width, heads, mlp) for _ in range(text_depth))
        self.text_norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)

    def get_input_embeddings(self) -> nn.Embedding:
        """The layer that makes the vectors of words."""
        return self.word_embed

    def get_image_features(self, pixel_values: Tensor) -> Tensor:
        """Map images, shape (b, 3, h, w), to vectors of the decoder, one for each patch, shape (b, patches, d)."""
        x = self.embed(pixel_values).flatten(2).transpose(1, 2) + self.position
        return self.projector(self.norm(self.blocks(x)))  # type: ignore[no-any-return]

    def forward(
        self, input_ids: Tensor, pixel_values: Tensor | None = None, attention_mask: Tensor | None = None
    ) -> dict[str, Tensor]:
        """Predict the next word at every position.

        Returns:
            ``logits``, shape (b, n, words).
        """
        x, is_image = self.word_embed(input_ids), input_ids == IMAGE
        real = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        place = ((real.bool() & ~is_image).cumsum(1) - 1).clamp_min(0)
        patches = None if pixel_values is None else self.get_image_features(pixel_values)
        length, limit = x.shape[1] - self.position.shape[1], self.text_position.shape[1]
        if length > limit:
            raise InputError(f"the text has {length} words beside the image tokens: this model reads at most {limit}")
        x = x + self.text_position[0][place.clamp_max(limit - 1)]
        if patches is not None:
            counts = is_image.sum(1)
            if len(patches) != len(x) or not bool((counts == patches.shape[1]).all()):
                raise InputError(
                    f"{len(x)} texts with {sorted(set(counts.tolist()))} image tokens and {len(patches)} images of "
                    f"{patches.shape[1]} patches: every text needs one image and one image token for each patch"
                )
            x = x.masked_scatter(is_image[..., None], patches.to(x.dtype))
        steps = torch.arange(x.shape[1], device=x.device)
        # A token always attends to itself, so that rows of padding have a defined softmax.
        mask = (steps[:, None] >= steps) & real.bool()[:, None] | (steps[:, None] == steps)
        for block in self.text_blocks:
            x = block(x, mask[:, None])
        return {"logits": self.head(self.text_norm(x))}
