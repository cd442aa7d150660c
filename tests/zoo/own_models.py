"""Models that users write: other outputs, other inputs, and orders of tokens; and models with a planted answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from tests.zoo.entry import METHODS, Entry, Subject
from vitrail.models.plain_vit import PlainViT

GRID = (4, 4)


def images(count: int = 2, seed: int = 0) -> Tensor:
    return torch.randn(count, 3, 32, 32, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def vit(seed: int = 0, **options: Any) -> PlainViT:
    torch.manual_seed(seed)
    return PlainViT(**options).double().eval()


class Wrapped(nn.Module):
    """A ViT whose output or input has another form."""

    def __init__(self, forward: Callable[..., Any], **options: Any) -> None:
        super().__init__()
        self.vit = vit(**options)
        self.write = forward

    def tokens(self, x: Tensor) -> Tensor:
        """Tokens after the last norm."""
        v = self.vit
        x = v.embed(x).flatten(2).transpose(1, 2)
        return v.norm(v.blocks(torch.cat([v.prefix.expand(len(x), -1, -1), x], 1) + v.position))

    def forward(self, *given: Any, **named: Any) -> Any:
        return self.write(self, *given, **named)


def wrapped(write: Callable[..., Any], inputs: Any = None, target: Any = 1, **options: Any) -> Subject:
    """A wrapped ViT and its twin, the ViT itself."""
    twin = Subject(vit(), images(), 1, grid=GRID)
    given = images() if inputs is None else inputs
    return Subject(Wrapped(write).eval(), given, target, grid=GRID, twin=twin, options=options)


def features_and_logits(m: Wrapped, x: Tensor) -> tuple[Tensor, Tensor]:
    tokens = m.tokens(x)
    return tokens[:, 0], m.vit.head(tokens[:, 0])


def nested(m: Wrapped, x: Tensor) -> dict[str, Any]:
    tokens = m.tokens(x)
    return {"aux": {"tokens": tokens}, "logits": m.vit.head(tokens[:, 0])}


@dataclass
class Batch:
    """The only argument of a model."""

    images: Tensor


def two_images(m: Wrapped, a: Tensor | None = None, b: Tensor | None = None) -> Tensor:
    assert a is not None
    assert b is not None
    return m.vit(a) + 0.3 * m.vit(b)


def order_of_names() -> Subject:
    model = Wrapped(two_images).eval()
    x, y = images(), images(seed=1)
    twin = Subject(model, {"a": x, "b": y}, 1, grid=GRID)
    return Subject(model, {"b": y, "a": x}, 1, grid=GRID, twin=twin)


class Biased(nn.Module):
    """A ViT whose attention has a term for each key: patches that all tokens attend to, or that none does."""

    def __init__(self, patch: tuple[int, int], bias: float) -> None:
        super().__init__()
        self.vit = vit(prefix=1)
        terms = torch.zeros(17, dtype=torch.float64)
        terms[1 + patch[0] * 4 + patch[1]] = bias
        self.register_buffer("terms", terms)

    def forward(self, x: Tensor) -> Tensor:
        v = self.vit
        x = v.embed(x).flatten(2).transpose(1, 2)
        x = torch.cat([v.prefix.expand(len(x), -1, -1), x], 1) + v.position
        for block in v.blocks:
            q, k, value = block.qkv(block.norm1(x)).unflatten(-1, (3, block.heads, -1)).permute(2, 0, 3, 1, 4)
            z = nn.functional.scaled_dot_product_attention(q, k, value, attn_mask=self.terms.expand(17, 17))
            x = x + block.proj(z.transpose(1, 2).flatten(2))
            x = x + block.mlp(block.norm2(x))
        return v.head(v.norm(x)[:, 0])


def biased(bias: float, patch: tuple[int, int] = (2, 1)) -> Subject:
    return Subject(Biased(patch, bias).eval(), images(), 1, grid=GRID, patch=patch)


class Scaled(nn.Module):
    """A learnable number without axes on each branch, as in ReZero."""

    def __init__(self) -> None:
        super().__init__()
        self.vit = vit()
        self.alpha = nn.Parameter(torch.tensor(0.7, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        v = self.vit
        x = v.embed(x).flatten(2).transpose(1, 2)
        x = torch.cat([v.prefix.expand(len(x), -1, -1), x], 1) + v.position
        for block in v.blocks:
            q, k, value = block.qkv(block.norm1(x)).unflatten(-1, (3, block.heads, -1)).permute(2, 0, 3, 1, 4)
            z = nn.functional.scaled_dot_product_attention(q, k, value).transpose(1, 2).flatten(2)
            x = x + self.alpha * block.proj(z)
            x = x + self.alpha * block.mlp(block.norm2(x))
        return v.head(v.norm(x)[:, 0])


class Reordered(nn.Module):
    """Patches are sorted by brightness before the blocks, and the darkest are dropped where ``kept`` is given."""

    def __init__(self, kept: int = 16) -> None:
        super().__init__()
        self.vit, self.kept = vit(), kept

    def forward(self, x: Tensor) -> Tensor:
        v = self.vit
        x = v.embed(x).flatten(2).transpose(1, 2) + v.position[:, 1:]
        order = x.mean(-1).argsort(1, descending=True)[:, : self.kept]
        x = x.gather(1, order[..., None].expand(-1, -1, x.shape[-1]))
        x = torch.cat([v.prefix.expand(len(x), -1, -1) + v.position[:, :1], x], 1)
        return v.head(v.norm(v.blocks(x))[:, 0])


class Ensemble(nn.Module):
    """The mean of two ViTs."""

    def __init__(self) -> None:
        super().__init__()
        self.members = nn.ModuleList([vit(1), vit(2)])

    def forward(self, x: Tensor) -> Tensor:
        return (self.members[0](x) + self.members[1](x)) / 2


class Stem(nn.Module):
    """Convolutions before the patches, as in hybrid models; they pad with zeros."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 3, 3, padding=1).double()
        self.vit = vit()

    def forward(self, x: Tensor) -> Tensor:
        return self.vit(self.stem(x))


def classifier(build: Callable[[], nn.Module], **options: Any) -> Subject:
    torch.manual_seed(3)
    return Subject(build().double().eval(), images(), 1, grid=GRID, **options)


SINGLE = ("rollout", "transformer_mm", "gradient_x_input")
ENTRIES = [
    Entry("own:vit", partial(classifier, vit), ("swap_patches", "roll_image", "permute_examples"), slow=False),
    Entry("own:vit_mean", partial(classifier, partial(vit, pool=True)), ("roll_image", "permute_examples"), slow=False),
    Entry("own:vit_three_prefix_tokens", partial(classifier, partial(vit, prefix=3)), ("swap_patches",), slow=False),
    Entry("own:vit_one_block", partial(classifier, partial(vit, depth=1)), ("swap_patches",), slow=False),
    Entry("own:vit_distilled", partial(classifier, partial(vit, prefix=2, distilled=True)), ("roll_image",),
          slow=False),
    Entry("own:decisive_patch", partial(biased, 30.0), ("decisive_patch",), ("raw_attention", *SINGLE[:2], "leadlight"),
          slow=False),
    Entry("own:ignored_patch", partial(biased, float("-inf")), ("ignored_patch",),
          (*METHODS, "legrad", "attnlrp", "vtranm"), slow=False),
    Entry("own:patch_without_attention", partial(biased, -1000.0), ("ignored_patch",), (*SINGLE, "attnlrp"),
          slow=False),
    Entry("own:learnable_scalar", partial(classifier, Scaled), ("swap_patches",), (*METHODS, "attnlrp"), slow=False),
    Entry("own:convolution_stem", partial(classifier, Stem), ("permute_examples",), SINGLE, slow=False),
    Entry("own:dict_output", partial(wrapped, lambda m, x: {"logits": m.vit(x)}), ("same_as_twin",), slow=False),
    Entry("own:nested_output", partial(wrapped, nested), ("same_as_twin",), slow=False),
    Entry("own:logits_and_none", partial(wrapped, lambda m, x: (m.vit(x), None)), ("same_as_twin",), slow=False),
    Entry("own:features_and_logits", partial(wrapped, features_and_logits, output=1), ("same_as_twin",), slow=False),
    Entry("own:features_or_logits", partial(wrapped, features_and_logits), refused={"rollout": "output="}, slow=False),
    Entry("own:keyword_images", partial(wrapped, lambda m, images: m.vit(images), {"images": images()}),
          ("same_as_twin",), slow=False),
    Entry("own:dict_argument", partial(wrapped, lambda m, batch: m.vit(batch["x"]), {"batch": {"x": images()}}),
          ("same_as_twin",), slow=False),
    Entry("own:dataclass_argument", partial(wrapped, lambda m, batch: m.vit(batch.images), Batch(images())),
          ("same_as_twin",), slow=False),
    Entry("own:function_target", partial(wrapped, lambda m, x: m.vit(x), target=lambda o: o[:, 1]),
          ("same_as_twin",), SINGLE, slow=False),
    Entry("own:order_of_names", order_of_names, ("same_as_twin",), ("gradient_x_input",), slow=False),
    Entry("own:sorted_tokens", partial(classifier, Reordered), ("swap_patches", "permute_examples"),
          SINGLE, slow=False),
    Entry("own:pruned_tokens", partial(classifier, partial(Reordered, 9)), ("swap_patches", "permute_examples"),
          SINGLE, slow=False),
    Entry("own:ensemble", partial(classifier, Ensemble), ("plant_patch", "permute_examples"), ("gradient_x_input",),
          {"rollout": "side by side", "gradcam_features": "side by side|several", "cdam": "side by side|several"},
          slow=False),
]  # fmt: skip
