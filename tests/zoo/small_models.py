"""Models of every family, small enough to test on, with what must be found in each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

import vitrail
from vitrail.capture.inputs import ModelInputs
from vitrail.capture.structure import read_structure
from vitrail.errors import NotApplicableError
from vitrail.methods import find
from vitrail.models.plain_vit import PlainViT

IMAGE = (3, 224, 224)
SMALL = 48
#: Families whose methods take many passes.
MANY = ("path", "relevance", "input", "perturbation")
#: Width of models whose published width is 768, which is tested once for each family by the slow tests.
NARROW = {"embed_dim": 192, "num_heads": 6}


@dataclass(frozen=True)
class Case:
    """A model to make, what it eats, and what must be found in it."""

    make: Callable[[], nn.Module]
    prefix: int
    grid: tuple[int, int] | None
    readout: str
    layers: int
    size: tuple[int, ...] = IMAGE
    target: Callable[[Any], torch.Tensor] | None = None
    scaled: bool = False


def timm_model(name: str, **options: Any) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        import timm

        return timm.create_model(name, **options)

    return make


def hf(model: str, config: str, **options: Any) -> Callable[[], nn.Module]:
    shared = {
        "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 96, "image_size": 48,
        "patch_size": 16,
    }  # fmt: skip

    def make() -> nn.Module:
        import transformers

        settings = getattr(transformers, config)(**(shared | options))
        return getattr(transformers, model)(settings)

    return make


def torchvision_model() -> nn.Module:
    from torchvision.models import VisionTransformer

    return VisionTransformer(32, 16, 3, 4, 64, 96, num_classes=5)


def torchvision_vit_b_16() -> nn.Module:
    """Two of the twelve blocks, at the published width and number of tokens."""
    from torchvision.models import VisionTransformer

    return VisionTransformer(224, 16, num_layers=2, num_heads=12, hidden_dim=768, mlp_dim=3072)


def open_clip_vit_b_32() -> nn.Module:
    """Two blocks of each encoder, at the published widths and numbers of tokens."""
    import open_clip
    from open_clip.model import CLIP

    config = open_clip.get_model_config("ViT-B-32")
    assert config is not None
    return CLIP(config["embed_dim"], config["vision_cfg"] | {"layers": 2}, config["text_cfg"] | {"layers": 2})


def open_clip_model() -> nn.Module:
    from open_clip.model import CLIP

    vision = {"layers": 3, "width": 64, "head_width": 16, "patch_size": 16, "image_size": 48, "ls_init_value": 0.5}
    text = {"context_length": 8, "vocab_size": 50, "width": 32, "heads": 2, "layers": 2}
    return CLIP(512, vision, text)


class HandWritten(nn.Module):
    """Attention by softmax and matmul, or by einsum, inside a model nobody knows, in (tokens, batch, width) layout.

    Turned, features come before tokens, so that values stand to the left of attention.
    """

    def __init__(self, einsum: bool = False, turned: bool = False) -> None:
        super().__init__()
        self.embed = nn.Conv2d(3, 32, 8, 8)
        self.cls = nn.Parameter(torch.randn(1, 1, 32))
        self.layers = nn.ModuleList(
            nn.ModuleDict(
                {name: nn.Linear(32, 32) for name in "qkvo"}
                | {"n1": nn.LayerNorm(32), "n2": nn.LayerNorm(32), "up": nn.Linear(32, 64), "down": nn.Linear(64, 32)}
            )
            for _ in range(3)
        )
        self.head = nn.Linear(32, 5)
        self.einsum, self.turned = einsum, turned

    def forward(self, images: torch.Tensor) -> dict[str, torch.Tensor]:
        x = self.embed(images).flatten(2).permute(2, 0, 1)
        x = torch.cat([self.cls.expand(-1, x.shape[1], -1), x])
        for m in self.layers:
            y = m["n1"](x)
            q, k, v = (m[n](y).view(*y.shape[:2], 4, 8).permute(1, 2, 0, 3) for n in "qkv")
            if self.turned:
                q, k, v = (t.transpose(-1, -2) for t in (q, k, v))
                if self.einsum:
                    a = (torch.einsum("bhdi,bhdj->bhij", q, k) / 8**0.5).softmax(-1)
                    z = torch.einsum("bhdj,bhij->bhdi", v, a).mT
                else:
                    z = (v @ ((q.mT @ k) * 8**-0.5).softmax(-1).mT).transpose(2, 3)
            elif self.einsum:
                a = (torch.einsum("b h i d, b h j d -> b h i j", q, k) / 8**0.5).softmax(-1)
                z = torch.einsum("bhij,bhjd->bhid", nn.functional.dropout(a, 0.1, self.training), v)
            else:
                z = torch.matmul(torch.softmax(torch.matmul(q, k.transpose(-1, -2)) * 8**-0.5, dim=-1), v)
            branch = m["o"](z.permute(2, 0, 1, 3).reshape(*y.shape))
            branch += x  # overwrites a term of the sum, as thrifty code does
            x = branch
            x = x + m["down"](nn.functional.gelu(m["up"](m["n2"](x))))
        return {"logits": self.head(x[0])}


class Encoder(nn.Module):
    """torch's own TransformerEncoder, whose fast path would hide its attention."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Conv2d(3, 32, 8, 8)
        layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        self.head = nn.Linear(32, 5)

    def forward(self, images: torch.Tensor) -> tuple[torch.Tensor, None]:
        return self.head(self.encoder(self.embed(images).flatten(2).transpose(1, 2)).mean(1)), None


class FoldedHeads(PlainViT):
    """Heads folded into the batch before the fused kernel is called."""

    def __init__(self) -> None:
        super().__init__()
        for block in self.blocks:
            block.forward = self._forward(block)

    @staticmethod
    def _forward(block: Any) -> Callable[[torch.Tensor], torch.Tensor]:
        def forward(x: torch.Tensor) -> torch.Tensor:
            b, n, d = x.shape
            q, k, v = (t.reshape(b * 4, n, d // 4) for t in
                       block.qkv(block.norm1(x)).view(b, n, 3, 4, d // 4).permute(2, 0, 3, 1, 4))  # fmt: skip
            z = nn.functional.scaled_dot_product_attention(q, k, v)
            x = x + block.proj(z.view(b, 4, n, d // 4).transpose(1, 2).reshape(b, n, d))
            return x + block.mlp(block.norm2(x))

        return forward


def similar(output: Any) -> torch.Tensor:
    return vitrail.similarity(torch.randn(3, 512, generator=torch.Generator().manual_seed(0)))(output)


CASES = {
    "timm:vit_tiny": Case(
        timm_model("vit_tiny_patch16_224", depth=6, img_size=96), 1, (6, 6), "cls", 6, size=(3, 96, 96)
    ),
    "timm:vit_base": Case(
        timm_model("vit_base_patch16_224", depth=2, img_size=96, **NARROW), 1, (6, 6), "cls", 2, size=(3, 96, 96)
    ),
    "timm:deit_tiny": Case(
        timm_model("deit_tiny_patch16_224", depth=3, img_size=96), 1, (6, 6), "cls", 3, size=(3, 96, 96)
    ),
    "timm:deit_tiny_distilled": Case(
        timm_model("deit_tiny_distilled_patch16_224", depth=3, img_size=96), 2, (6, 6), "distilled", 3,
        size=(3, 96, 96),
    ),
    "timm:deit3_small": Case(
        timm_model("deit3_small_patch16_224", depth=3, img_size=96), 1, (6, 6), "cls", 3, size=(3, 96, 96), scaled=True
    ),
    "timm:beit_base": Case(
        timm_model("beit_base_patch16_224", depth=2, img_size=96, **NARROW), 1, (6, 6), "mean", 2, size=(3, 96, 96),
        scaled=True,
    ),
    "timm:eva02_tiny": Case(
        timm_model("eva02_tiny_patch14_224", depth=3, img_size=84, num_classes=10), 1, (6, 6), "mean", 3,
        size=(3, 84, 84),
    ),
    "timm:dinov2_reg4": Case(
        timm_model("vit_small_patch14_reg4_dinov2", img_size=84, num_classes=10, depth=3), 5, (6, 6), "cls", 3,
        size=(3, 84, 84), scaled=True,
    ),
    "timm:siglip": Case(
        timm_model("vit_base_patch16_siglip_224", num_classes=10, depth=2, img_size=96, **NARROW), 0, (6, 6), "pool",
        3, size=(3, 96, 96),
    ),
    "timm:not-square": Case(
        timm_model("vit_tiny_patch16_224", img_size=(96, 160), depth=3), 1, (6, 10), "cls", 3, size=(3, 96, 160)
    ),
    "timm:patch-8": Case(
        timm_model("vit_tiny_patch16_224", img_size=64, patch_size=8, depth=3), 1, (8, 8), "cls", 3, size=(3, 64, 64)
    ),
    "timm:gap": Case(
        timm_model("vit_tiny_patch16_224", global_pool="avg", class_token=False, depth=3, img_size=96), 0, (6, 6),
        "mean", 3, size=(3, 96, 96),
    ),
    "hf:vit": Case(hf("ViTForImageClassification", "ViTConfig", num_labels=5), 1, (3, 3), "cls", 3, size=(3, 48, 48)),
    "hf:vit-eager": Case(
        hf("ViTForImageClassification", "ViTConfig", attn_implementation="eager", num_labels=5), 1, (3, 3), "cls",
        3, size=(3, 48, 48)
    ),
    "hf:deit": Case(hf("DeiTForImageClassification", "DeiTConfig"), 2, (3, 3), "cls", 3, size=(3, 48, 48)),
    "hf:deit-teacher": Case(
        hf("DeiTForImageClassificationWithTeacher", "DeiTConfig"), 2, (3, 3), "distilled", 3, size=(3, 48, 48)
    ),
    "hf:dinov2": Case(
        hf("Dinov2ForImageClassification", "Dinov2Config"), 1, (3, 3), "cls+mean", 3, size=(3, 48, 48), scaled=True
    ),
    "hf:dinov2-registers": Case(
        hf("Dinov2WithRegistersForImageClassification", "Dinov2WithRegistersConfig", num_register_tokens=4), 5, (3, 3),
        "cls+mean", 3, size=(3, 48, 48), scaled=True,
    ),
    "hf:clip-vision": Case(
        hf("CLIPVisionModelWithProjection", "CLIPVisionConfig"), 1, (3, 3), "cls", 3, size=(3, 48, 48),
        target=lambda output: output.image_embeds[:, :3],
    ),
    "hf:bert": Case(
        hf("BertForSequenceClassification", "BertConfig", vocab_size=100), 1, None, "cls", 3, size=(11,)
    ),
    "torchvision:vit": Case(torchvision_model, 1, (2, 2), "cls", 3, size=(3, 32, 32)),
    "open_clip:vit": Case(open_clip_model, 1, (3, 3), "cls", 3, size=(3, 48, 48), target=similar, scaled=True),
    "own:handwritten": Case(HandWritten, 1, (4, 4), "cls", 3, size=(3, 32, 32)),
    "own:einsum": Case(lambda: HandWritten(einsum=True), 1, (4, 4), "cls", 3, size=(3, 32, 32)),
    "own:turned": Case(lambda: HandWritten(turned=True), 1, (4, 4), "cls", 3, size=(3, 32, 32)),
    "own:turned-einsum": Case(lambda: HandWritten(True, turned=True), 1, (4, 4), "cls", 3, size=(3, 32, 32)),
    "own:encoder": Case(Encoder, 0, (4, 4), "mean", 3, size=(3, 32, 32)),
    "own:folded-heads": Case(FoldedHeads, 1, (4, 4), "cls", 3, size=(3, 32, 32)),
    "own:registers": Case(lambda: PlainViT(prefix=3), 3, (4, 4), "cls", 3, size=(3, 32, 32)),
}  # fmt: skip


def build(name: str) -> tuple[Case, nn.Module, ModelInputs]:
    case = CASES[name]
    torch.manual_seed(5)
    model = case.make().double().eval()
    with torch.no_grad():
        for parameter in model.parameters():  # no head of zeros, no LayerScale so small that nothing moves
            if float(parameter.detach().abs().max()) < 0.05:
                parameter.add_(0.05 * torch.randn_like(parameter))
    if case.grid is None:
        ids = torch.randint(3, 100, (2, *case.size))
        mask = torch.ones_like(ids)
        mask[1, 8:] = 0
        return case, model, ModelInputs((), {"input_ids": ids, "attention_mask": mask})
    return case, model, ModelInputs((torch.randn(2, *case.size, dtype=torch.float64),))


def quick(model: nn.Module, model_inputs: ModelInputs, target: Any = None) -> dict[str, dict[str, Any]]:
    """Every method that applies to a model, with options that make it quick."""
    structure = read_structure(model, model_inputs, None, target if callable(target) else None)
    chosen = {}
    for name, method in vitrail.methods().items():
        _, line, options = find(name)
        try:
            line.check(structure, options, model=model)
        except NotApplicableError:
            continue
        if method.family in MANY and model_inputs.image is not None and model_inputs.image.shape[-1] > SMALL:
            continue  # many passes: tried on the small models alone
        chosen[name] = dict(method.quick)
    return chosen


def inputs_of(model_inputs: ModelInputs) -> Any:
    return dict(model_inputs.kwargs) or model_inputs.args[0]
