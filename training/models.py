"""Models as trained: PlainViT with stochastic depth and initialisation, a patch head, and a teacher network."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.models.plain_vit import PlainBlock, PlainViT

TEACHER_CHANNELS = (64, 128, 256, 512)


class StochasticDepthBlock(PlainBlock):
    """A transformer block whose two residual branches are dropped for random samples during training."""

    def __init__(self, width: int, heads: int, mlp: int, rate: float) -> None:
        super().__init__(width, heads, mlp)
        self.rate = rate

    def _drop(self, branch: Tensor) -> Tensor:
        if not self.training or self.rate == 0:
            return branch
        kept = torch.rand(branch.shape[0], 1, 1, device=branch.device) >= self.rate
        return branch * (kept.to(branch.dtype) / (1 - self.rate))

    def forward(self, x: Tensor, cls_mask: Tensor | None = None) -> Tensor:
        """Map tokens, shape (b, n, d), to tokens of the same shape.

        Args:
            x: The tokens.
            cls_mask: Tokens that the first token may attend to, shape (b, n); all by default.
        """
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        if cls_mask is None:
            attended = F.scaled_dot_product_attention(q, k, v)
        else:
            first = F.scaled_dot_product_attention(q[:, :, :1], k, v, attn_mask=cls_mask[:, None, None])
            attended = torch.cat([first, F.scaled_dot_product_attention(q[:, :, 1:], k, v)], 2)
        x = x + self._drop(self.proj(attended.transpose(1, 2).flatten(2)))
        return x + self._drop(self.mlp(self.norm2(x)))


class TrainableViT(PlainViT):
    """A ``PlainViT`` with the same parameter names, plus stochastic depth and weight initialisation.

    Args:
        architecture: Arguments of ``PlainViT``.
        drop_path: Stochastic depth rate of the last block; it grows linearly from 0 in the first block.
    """

    def __init__(self, architecture: Mapping[str, Any], drop_path: float = 0.0) -> None:
        super().__init__(**architecture)
        first: Any = self.blocks[0]
        width, heads, mlp = first.proj.in_features, first.heads, first.mlp[0].out_features // first.proj.in_features
        depth = len(self.blocks)
        rates = [drop_path * i / max(1, depth - 1) for i in range(depth)]
        self.blocks = nn.Sequential(*(StochasticDepthBlock(width, heads, mlp, rate) for rate in rates))
        self._initialise(width)

    def _initialise(self, width: int) -> None:
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=0.02)
                nn.init.zeros_(module.bias)
        nn.init.trunc_normal_(self.embed.weight, std=self.embed.weight[0].numel() ** -0.5)
        assert self.embed.bias is not None
        nn.init.zeros_(self.embed.bias)
        prefix = self.prefix.shape[1]
        side = math.isqrt(self.position.shape[1] - prefix)
        with torch.no_grad():
            if prefix:  # trunc_normal_ warns about empty tensors
                nn.init.trunc_normal_(self.prefix, std=0.02)
            # Neighbouring positions start out similar, which a small model would need many steps to learn.
            self.position.zero_()
            self.position[0, prefix:] = 0.5 * sincos_positions(side, width)

    def forward(self, images: Tensor) -> Tensor:
        """Map images, shape (b, 3, h, w), to logits, shape (b, classes)."""
        return self.classify(self.blocks(self.embed_tokens(images)))

    def embed_tokens(self, images: Tensor) -> Tensor:
        """Map images, shape (b, 3, h, w), to the input of the first block, shape (b, n, d)."""
        x = self.embed(images).flatten(2).transpose(1, 2)
        if self.prefix.shape[1]:  # avoids empty tensors in compiled code
            x = torch.cat([self.prefix.expand(x.shape[0], -1, -1), x], 1)
        return x + self.position

    def classify(self, x: Tensor) -> Tensor:
        """Map the output of the last block, shape (b, n, d), to logits, shape (b, classes)."""
        if self.head_dist is not None:
            by_cls, by_distillation = self.classify_twice(x)
            return (by_cls + by_distillation) / 2
        x = self.norm(x)
        return self.head(x[:, self.prefix.shape[1] :].mean(1) if self.pool else x[:, 0])

    def classify_twice(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Map the output of the last block to the logits of the CLS head and of the distillation head."""
        assert self.head_dist is not None
        x = self.norm(x)
        return self.head(x[:, 0]), self.head_dist(x[:, 1])

    def forward_heads(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Map images to the logits of the CLS head and of the distillation head, both of shape (b, classes)."""
        return self.classify_twice(self.blocks(self.embed_tokens(images)))


class PatchLabelViT(TrainableViT):
    """A ``TrainableViT`` with a second head, used only in training, that classifies what covers each patch.

    Attention mixes information between tokens, so after a few blocks every token could describe every object in the
    image. Two measures keep the information local. After each block but the first, each patch has to predict its own
    class. And the readout can be restricted to some patches: what it still says about the objects of the other patches
    it can only know from tokens elsewhere.

    Args:
        architecture: Arguments of ``PlainViT``.
    """

    def __init__(self, architecture: Mapping[str, Any]) -> None:
        super().__init__(architecture)
        self.patch_head = nn.Linear(self.head.in_features, self.head.out_features + 1)
        nn.init.trunc_normal_(self.patch_head.weight, std=0.02)
        nn.init.zeros_(self.patch_head.bias)

    def forward_with_patches(self, images: Tensor, visible: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the logits of images and of each of their patches.

        Args:
            images: Shape (b, 3, h, w).
            visible: Patches that the readout may use, shape (b, patches).

        Returns:
            Logits, shape (b, classes), and for each block but the first the logits of the class that covers each
            patch, the last one for none, shape ((depth - 1) * b, patches, classes + 1).
        """
        x, prefix = self.embed_tokens(images), self.prefix.shape[1]
        cls_mask = None if self.pool else F.pad(visible, (prefix, 0), value=True)
        outputs = []
        for block in self.blocks:
            x = block(x, cls_mask)
            outputs.append(x[:, prefix:])
        patches = torch.cat(outputs[1:])
        patch_logits = self.patch_head(F.layer_norm(patches, patches.shape[-1:]))
        if not self.pool:
            return self.classify(x), patch_logits
        weights = visible / visible.sum(1, keepdim=True).clamp_min(1)
        return self.head((weights[:, None] @ self.norm(x)).squeeze(1)), patch_logits


def sincos_positions(side: int, width: int) -> Tensor:
    """Sine-cosine position embedding of a square grid, shape (side², width)."""
    quarter = width // 4
    frequency = 10_000.0 ** (-torch.arange(quarter) / quarter)
    angle = torch.arange(side)[:, None] * frequency
    line = torch.cat([angle.sin(), angle.cos()], 1)
    grid = torch.cat([line[:, None].expand(side, side, -1), line[None].expand(side, side, -1)], -1).flatten(0, 1)
    return F.pad(grid, (0, width - grid.shape[1]))


def distilled_state(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights of a model with one CLS token as those of a distilled one: its token and its head are used twice."""
    found = {name: value.clone() for name, value in state.items()}
    found["prefix"] = torch.cat([state["prefix"][:, :1]] * 2, 1)
    found["position"] = torch.cat([state["position"][:, :1], state["position"]], 1)
    for part in ("weight", "bias"):
        found[f"head_dist.{part}"] = state[f"head.{part}"].clone()
    return found


def plain_copy(net: TrainableViT, architecture: Mapping[str, Any]) -> PlainViT:
    """Copy the weights into a ``PlainViT`` for evaluation, and check that both compute the same logits.

    Raises:
        RuntimeError: The logits differ.
    """
    plain = PlainViT(**architecture)
    plain.load_state_dict({k: v for k, v in net.state_dict().items() if k in plain.state_dict()}, strict=True)
    plain.eval().requires_grad_(False)
    size = architecture["size"]
    images = torch.randn(2, 3, size, size)
    training = net.training
    with torch.no_grad():
        equal = torch.allclose(plain(images), net.eval()(images), atol=1e-4)
    net.train(training)
    if not equal:
        raise RuntimeError("TrainableViT and PlainViT compute different logits: update training/models.py")
    return plain


# --- the teacher for distillation -------------------------------------------------------------------------------------


def conv(channels_in: int, channels_out: int) -> nn.Sequential:
    """3×3 convolution, batch norm and ReLU."""
    return nn.Sequential(
        nn.Conv2d(channels_in, channels_out, 3, padding=1, bias=False),
        nn.BatchNorm2d(channels_out),
        nn.ReLU(inplace=True),
    )


class ResidualBlock(nn.Module):
    """Two convolutions with a residual connection."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.branch = nn.Sequential(conv(channels, channels), conv(channels, channels))

    def forward(self, x: Tensor) -> Tensor:
        """Map features, shape (b, c, h, w), to features of the same shape."""
        return x + self.branch(x)


class TeacherResNet(nn.Module):
    """A small residual network whose predictions a transformer learns from (knowledge distillation).

    Args:
        classes: Number of classes.
        channels: Channels of the stem and of each stage; each stage halves the resolution.

    Example:
        >>> TeacherResNet(10, (4, 8))(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 10])
    """

    def __init__(self, classes: int, channels: tuple[int, ...] = TEACHER_CHANNELS) -> None:
        super().__init__()
        stages = [
            nn.Sequential(conv(before, after), nn.MaxPool2d(2), ResidualBlock(after))
            for before, after in itertools.pairwise(channels)
        ]
        self.features = nn.Sequential(conv(3, channels[0]), *stages)
        self.head = nn.Linear(channels[-1], classes)
        self.to(memory_format=torch.channels_last)

    def forward(self, images: Tensor) -> Tensor:
        """Map images, shape (b, 3, h, w), to logits, shape (b, classes)."""
        x = self.features(images.contiguous(memory_format=torch.channels_last))
        return self.head(x.mean((2, 3)))
