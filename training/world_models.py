"""The models of the worlds as trained: initialisation, and heads that are used only in training."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.models.plain_clip import PlainCLIP
from vitrail.models.plain_detector import PlainDetector
from vitrail.models.plain_segmenter import PlainSegmenter
from vitrail.models.plain_sequences import PlainSpectrogramViT, PlainVideoViT
from vitrail.models.plain_vit import PlainBlock


def grid_positions(shape: Sequence[int], width: int) -> Tensor:
    """Sine-cosine position embedding of a grid of any number of axes, shape (cells, width)."""
    share = width // (2 * len(shape))
    frequency = 1_000.0 ** (-torch.arange(share) / share)
    lines = [torch.arange(n)[:, None] * frequency for n in shape]
    lines = [torch.cat([line.sin(), line.cos()], 1) for line in lines]
    cells = torch.cartesian_prod(*(torch.arange(n) for n in shape)).reshape(-1, len(shape))
    grid = torch.cat([line[cells[:, axis]] for axis, line in enumerate(lines)], 1)
    return F.pad(grid, (0, width - grid.shape[1]))


def initialise(model: Any, grid: Sequence[int]) -> None:
    """Draw the weights of a model whose patches lie on a grid."""
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.trunc_normal_(module.weight, std=0.02)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    nn.init.trunc_normal_(model.embed.weight, std=model.embed.weight[0].numel() ** -0.5)
    nn.init.zeros_(model.embed.bias)
    with torch.no_grad():
        positions = grid_positions(grid, model.position.shape[2])
        model.position.zero_()
        model.position[0, -len(positions) :] = 0.5 * positions
        if hasattr(model, "prefix"):
            nn.init.trunc_normal_(model.prefix, std=0.02)


def run_blocks(blocks: Iterable[nn.Module], x: Tensor, cls_mask: Tensor | None = None) -> list[Tensor]:
    """Outputs of all blocks, shape (b, n, d) each.

    Args:
        blocks: The blocks.
        x: Their input, shape (b, n, d).
        cls_mask: Tokens that the first token may attend to, shape (b, n); all by default.
    """
    outputs = []
    for block in blocks:
        assert isinstance(block, PlainBlock)
        q, k, v = block.qkv(block.norm1(x)).unflatten(-1, (3, block.heads, -1)).permute(2, 0, 3, 1, 4)
        if cls_mask is None:
            attended = F.scaled_dot_product_attention(q, k, v)
        else:
            first = F.scaled_dot_product_attention(q[:, :, :1], k, v, attn_mask=cls_mask[:, None, None])
            attended = torch.cat([first, F.scaled_dot_product_attention(q[:, :, 1:], k, v)], 2)
        x = x + block.proj(attended.transpose(1, 2).flatten(2))
        x = x + block.mlp(block.norm2(x))
        outputs.append(x)
    return outputs


def _plain_norm(x: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:])


class _PatchClassifier(nn.Module):
    """What video and spectrogram models share: logits with a restricted CLS token, and of every patch."""

    def forward_with_patches(self: Any, inputs: Tensor, visible: Tensor) -> tuple[Tensor, Tensor]:
        """Logits, shape (b, classes), and for each block but the first those of each patch, joined over the batch."""
        outputs = run_blocks(self.blocks, self.embed_tokens(inputs), F.pad(visible, (1, 0), value=True))
        patches = self.patch_head(_plain_norm(torch.cat([x[:, 1:] for x in outputs[1:]])))
        return self.head(self.norm(outputs[-1])[:, 0]), patches


class TrainableVideoViT(PlainVideoViT, _PatchClassifier):
    """A ``PlainVideoViT`` with a head that classifies what covers each patch."""

    def __init__(self, **architecture: Any) -> None:
        super().__init__(**architecture)
        self.patch_head = nn.Linear(self.head.in_features, self.head.out_features + 1)
        initialise(self, self.grid)


class TrainableSpectrogramViT(PlainSpectrogramViT, _PatchClassifier):
    """A ``PlainSpectrogramViT`` with a head that classifies what covers each patch."""

    def __init__(self, **architecture: Any) -> None:
        super().__init__(**architecture)
        self.patch_head = nn.Linear(self.head.in_features, self.head.out_features + 1)
        initialise(self, self.grid)


class TrainableSegmenter(PlainSegmenter):
    """A ``PlainSegmenter`` with initialisation."""

    def __init__(self, **architecture: Any) -> None:
        super().__init__(**architecture)
        initialise(self, (self.side, self.side))


class TrainableDetector(PlainDetector):
    """A ``PlainDetector`` with predictions after every block of the decoder, and of the class of each patch."""

    def __init__(self, **architecture: Any) -> None:
        super().__init__(**architecture)
        self.patch_head = nn.Linear(self.class_head.in_features, self.class_head.out_features)
        side = round(self.position.shape[1] ** 0.5)
        initialise(self, (side, side))
        nn.init.normal_(self.queries, std=0.5)

    def forward_all(self, images: Tensor) -> tuple[list[dict[str, Tensor]], Tensor]:
        """Predictions after each block of the decoder, and the logits of each patch, (b·blocks, n, classes + 1)."""
        outputs = run_blocks(self.blocks, self.embed(images).flatten(2).transpose(1, 2) + self.position)
        memory, queries, found = self.norm(outputs[-1]), self.queries.expand(len(images), -1, -1), []
        for block in self.decoder:
            queries = block(queries, memory)
            found.append(self.heads(queries))
        return found, self.patch_head(_plain_norm(torch.cat(outputs[1:])))


class TrainableCLIP(PlainCLIP):
    """A ``PlainCLIP`` with heads that name the shape and the colour of each patch."""

    def __init__(self, shapes: int, colours: int, **architecture: Any) -> None:
        super().__init__(**architecture)
        self.shape_head = nn.Linear(self.norm.normalized_shape[0], shapes + 1)
        self.colour_head = nn.Linear(self.norm.normalized_shape[0], colours + 1)
        side = round((self.position.shape[1] - 1) ** 0.5)
        initialise(self, (side, side))
        nn.init.normal_(self.word_embed.weight, std=0.2)
        nn.init.normal_(self.text_position, std=0.05)
        for projection in (self.projection, self.text_projection):
            nn.init.normal_(projection.weight, std=projection.in_features**-0.5)

    def embed_images(self, images: Tensor, visible: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Unit vectors of images, and shape and colour logits of the patches after each block but the first."""
        x = self.embed(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.prefix.expand(x.shape[0], -1, -1), x], 1) + self.position
        outputs = run_blocks(self.blocks, x, F.pad(visible, (1, 0), value=True))
        patches = _plain_norm(torch.cat([x[:, 1:] for x in outputs[1:]]))
        image = F.normalize(self.projection(self.norm(outputs[-1])[:, 0]).float(), dim=-1)
        return image, self.shape_head(patches), self.colour_head(patches)
