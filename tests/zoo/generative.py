"""Models that generate: decoders that see images, diffusion; and several examples in one sequence."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from tests.zoo.entry import Entry, Subject
from tests.zoo.known_answers import INNER
from tests.zoo.own_models import GRID, vit
from tests.zoo.own_models import images as own_images
from tests.zoo.pairs import TEXT, WIDTH, words
from tests.zoo.sequences import build, noise
from vitrail.models.plain_vit import PlainViT

ANY = ("gradient_x_input",)


def inner_word(output: Any) -> Tensor:
    return output.logits[:, INNER, 5]


def qwen(count: int) -> Subject:
    """Texts with an image each; the patches of all images lie in one row."""
    ids = words(2, 14)["input_ids"][:count].clone()
    ids[:, 0], ids[:, 1:5], ids[:, 5] = 53, 55, 54
    inputs = {
        "input_ids": ids, "attention_mask": torch.ones_like(ids), "pixel_values": noise(16 * count, 96),
        "image_grid_thw": torch.tensor([[1, 4, 4]] * count), "mm_token_type_ids": (ids == 55).long(),
    }  # fmt: skip
    vision = {
        "depth": 2, "embed_dim": 32, "hidden_size": 32, "num_heads": 4, "patch_size": 4, "mlp_ratio": 2,
        "spatial_merge_size": 2, "temporal_patch_size": 2,
    }  # fmt: skip
    text = TEXT | {"num_key_value_heads": 2, "rope_scaling": {"type": "mrope", "mrope_section": [1, 1, 2]}}
    return build(
        "Qwen2VLForConditionalGeneration", "Qwen2VLConfig", inputs, inner_word, text_config=text, vision_config=vision,
        image_token_id=55, video_token_id=56, vision_start_token_id=53, vision_end_token_id=54,
    )  # fmt: skip


def visual_bert() -> Subject:
    seen = torch.ones(2, 4, dtype=torch.long)
    inputs = {**words(2), "visual_embeds": noise(2, 4, 20), "visual_attention_mask": seen,
              "visual_token_type_ids": seen}  # fmt: skip
    return build(
        "VisualBertForQuestionAnswering", "VisualBertConfig", inputs, 1, **WIDTH, vocab_size=60,
        visual_embedding_dim=20, num_labels=5,
    )  # fmt: skip


class ModulatedBlock(nn.Module):
    """A block whose norms are scaled and shifted, and whose branches are gated, by the condition (adaLN-Zero)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = (nn.LayerNorm(width, elementwise_affine=False) for _ in range(2))
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(approximate="tanh"), nn.Linear(2 * width, width))
        self.modulation = nn.Sequential(nn.SiLU(), nn.Linear(width, 6 * width))

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        shift, scale, gate, shift2, scale2, gate2 = self.modulation(condition)[:, None].chunk(6, -1)
        q, k, v = self.qkv(self.norm1(x) * (1 + scale) + shift).unflatten(-1, (3, 4, -1)).permute(2, 0, 3, 1, 4)
        x = x + gate * self.proj(nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + gate2 * self.mlp(self.norm2(x) * (1 + scale2) + shift2)


class DiT(nn.Module):
    """A diffusion transformer: from a noisy image, a time and a class to an image."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.embed = nn.Conv2d(3, width, 8, 8)
        self.pos_embed = nn.Parameter(0.3 * torch.randn(1, 16, width))
        self.time = nn.Sequential(nn.Linear(1, width), nn.SiLU(), nn.Linear(width, width))
        self.label = nn.Embedding(10, width)
        self.blocks = nn.ModuleList([ModulatedBlock(width) for _ in range(3)])
        self.norm, self.out = nn.LayerNorm(width, elementwise_affine=False), nn.Linear(width, 3 * 64)

    def forward(self, x: Tensor, t: Tensor, y: Tensor) -> Tensor:
        condition = self.time(t[:, None].to(x) / 1000) + self.label(y)
        x = self.embed(x).flatten(2).transpose(1, 2) + self.pos_embed
        for block in self.blocks:
            x = block(x, condition)
        x = self.out(self.norm(x)).unflatten(1, (4, 4)).unflatten(3, (8, 8, 3))
        return torch.einsum("nhwpqc->nchpwq", x).reshape(len(x), 3, 32, 32)


def dit(target: Any) -> Subject:
    torch.manual_seed(0)
    inputs = {"x": own_images(), "t": torch.tensor([30, 500]), "y": torch.tensor([1, 2])}
    return Subject(DiT().double().eval(), inputs, target, grid=GRID)


class Packed(nn.Module):
    """The patches of all images in one sequence; a mask keeps each image to itself."""

    def __init__(self) -> None:
        super().__init__()
        self.vit: PlainViT = vit(prefix=0, pool=True)

    def forward(self, images: Tensor) -> Tensor:
        v, count = self.vit, len(images)
        x = (v.embed(images).flatten(2).transpose(1, 2) + v.position).flatten(0, 1)[None]
        owner = torch.arange(count).repeat_interleave(16)
        for block in v.blocks:
            q, k, value = block.qkv(block.norm1(x)).unflatten(-1, (3, block.heads, -1)).permute(2, 0, 3, 1, 4)
            z = nn.functional.scaled_dot_product_attention(q, k, value, attn_mask=owner[:, None] == owner)
            x = x + block.proj(z.transpose(1, 2).flatten(2))
            x = x + block.mlp(block.norm2(x))
        return v.head(v.norm(x).view(count, 16, -1).mean(1))


def packed(count: int) -> Subject:
    """Images in one sequence; its twin is the ViT that attends within each."""
    twin = Subject(vit(prefix=0, pool=True).eval(), own_images(count), 1, grid=GRID)
    return Subject(Packed().eval(), own_images(count), 1, grid=GRID, twin=twin)


ENTRIES = [
    Entry("hf:VisualBertForQuestionAnswering", visual_bert, ("permute_examples",),
          ("rollout", "gradtoken", *ANY), {"occlusion": "no grid of image patches"}),
    Entry("hf:Qwen2VLForConditionalGeneration", partial(qwen, 1), ("change_future",),
          ("rollout", "transformer_mm", "gradtoken", "attnlrp", *ANY), {"occlusion": "no grid of image patches"}),
    Entry("hf:Qwen2VLForConditionalGeneration, two examples", partial(qwen, 2),
          refused={"rollout": "explain the inputs one by one", "gradient_x_input": "explain the inputs one by one"}),
    Entry("own:dit", partial(dit, lambda o: o[:, 0].mean((1, 2))), ("swap_patches", "roll_image", "permute_examples"),
          ("rollout", "transformer_mm", "gradtoken", "attnlrp", *ANY), slow=False),
    Entry("own:dit, a pixel", partial(dit, lambda o: o[:, 1, 20, 7]), ("permute_examples",),
          ("rollout", "gradtoken", "attnlrp", *ANY), slow=False),
    Entry("own:packed_images", partial(packed, 2), ("same_as_twin",), ("rollout", "transformer_mm", "attnlrp", *ANY),
          {"shapley:forwards=40": "several examples in one sequence"}, slow=False),
    Entry("own:one_packed_image", partial(packed, 1), ("same_as_twin",), ("rollout", "transformer_mm", *ANY),
          slow=False),
]  # fmt: skip
