"""A small ViT that reads its settings from everywhere in each pass, to be changed between two calls."""

from __future__ import annotations

import os
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

WIDTH, HEADS, PATCH, SIDE, DEPTH, CLASSES = 24, 3, 8, 4, 3, 6
TOKENS = SIDE * SIDE + 1

#: Read by the model in each pass.
POOLING = "cls"
ORDER = list(range(SIDE * SIDE))
SETTINGS: dict[str, Any] = {"head": {"token": 0}}


@dataclass
class Inner:
    """A nested object that decides the readout."""

    pooling: str = "cls"
    tokens: list[int] = field(default_factory=lambda: [0])


def gelu(x: Tensor) -> Tensor:
    """The activation, as a function of the module that may be replaced."""
    return F.gelu(x)


class Attention(nn.Module):
    """Attention by the fused function."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.scale: float | None = None

    def forward(self, x: Tensor) -> Tensor:
        b, n, _ = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        z = F.scaled_dot_product_attention(q, k, v, scale=self.scale)
        return self.proj(z.transpose(1, 2).reshape(b, n, WIDTH))


class Block(nn.Module):
    """A block before whose MLP stands a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2, self.attn = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH), Attention()
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.act: Any = None
        self.parallel = False

    def forward(self, x: Tensor) -> Tensor:
        act = gelu if self.act is None else self.act
        if self.parallel:
            return x + self.attn(self.norm1(x)) + self.down(act(self.up(self.norm2(x))))
        x = x + self.attn(self.norm1(x))
        return x + self.down(act(self.up(self.norm2(x))))


class Adapted(nn.Module):
    """A linear layer with an adapter that is not merged."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base_layer, self.factor, self.enabled = base, 1.0, True
        self.lora_a, self.lora_b = nn.Linear(base.in_features, 2, False), nn.Linear(2, base.out_features, False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.base_layer(x)
        return out + self.factor * self.lora_b(self.lora_a(x)) if self.enabled else out


class ChangedViT(nn.Module):
    """A small ViT that reads its settings from attributes, containers, functions and globals in each pass."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Conv2d(3, WIDTH, PATCH, PATCH)
        self.cls = nn.Parameter(torch.randn(1, 1, WIDTH))
        self.position = nn.Parameter(0.5 * torch.randn(1, TOKENS, WIDTH))
        self.blocks = nn.ModuleList(Block() for _ in range(DEPTH))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, CLASSES)
        self.register_buffer("order", torch.arange(SIDE * SIDE), persistent=False)
        self.register_buffer("gate", torch.ones(()), persistent=False)
        self.pooling, self.token, self.last = "cls", 0, -1
        self.inner, self.namespace = Inner(), SimpleNamespace(deep=SimpleNamespace(pooling="cls"))
        self.config = {"pool": {"kind": "cls"}}
        self.listed, self.chosen = ["cls"], {"cls"}
        self.array, self.frozen_set = np.array([0]), frozenset({"cls"})
        self.ordered, self.queue = OrderedDict(pool="cls"), deque(["cls"])
        self.pool_function: Callable[[Tensor], Tensor] | None = None
        self.tokens_in: Callable[[Tensor], Tensor] | None = None
        self.softmax_output = False
        self.depth = slice(None)
        self.table: tuple[int, ...] | None = None
        self.scaled: float = 1.0

    def embedded(self, images: Tensor) -> Tensor:
        """Tokens of the patches, in an order, and the class token."""
        x = self.embed(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(len(x), -1, -1), x], 1) + self.position
        patches = x[:, 1:][:, self.order]
        if list(range(SIDE * SIDE)) != ORDER:
            patches = patches[:, ORDER]
        if self.table is not None:
            patches = patches[:, list(self.table)]
        x = torch.cat([x[:, :1], patches], 1)
        return x if self.tokens_in is None else self.tokens_in(x)

    def pooled(self, x: Tensor) -> Tensor:
        """The vector that the head reads."""
        if self.pool_function is not None:
            return self.pool_function(x)
        stated = [
            POOLING, os.environ.get("TINY_POOLING", "cls"), self.pooling, self.inner.pooling,
            self.namespace.deep.pooling, self.config["pool"]["kind"], self.listed[0], *self.chosen, *self.frozen_set,
            self.ordered["pool"], self.queue[-1],
        ]  # fmt: skip
        if "mean" in stated:
            return x[:, 1:].mean(1)
        if "both" in stated:
            return x[:, 0] + x[:, 1:].mean(1)
        token = self.token + int(self.array[0]) + SETTINGS["head"]["token"] + self.inner.tokens[0]
        return x[:, token]

    def forward(self, images: Tensor) -> Tensor:
        x = self.embedded(images)
        states = [x]
        for block in self.blocks[self.depth]:
            states.append(block(states[-1]))
        x = self.norm(states[self.last]) * self.gate * self.scaled
        scores = self.head(self.pooled(x))
        return scores.softmax(-1) if self.softmax_output else scores


class OtherViT(ChangedViT):
    """The same weights, another readout."""

    def pooled(self, x: Tensor) -> Tensor:
        """The mean of the patches."""
        return x[:, 1:].mean(1)


def changed_vit() -> ChangedViT:
    """A model with fixed random weights, in evaluation mode."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return ChangedViT().eval()


def adapted_vit() -> ChangedViT:
    """The same with an adapter on each value and output projection."""
    model = changed_vit()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(4)
        for block in model.blocks:
            block.attn.proj, block.attn.qkv = Adapted(block.attn.proj), Adapted(block.attn.qkv)
    return model.eval()
