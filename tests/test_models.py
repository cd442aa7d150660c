"""The same checks on every family of models: nothing changes, everything is found, every method works."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn

import vitrail
from vitrail.errors import MapWarning
from vitrail.inside.anatomy import read
from vitrail.inside.capture import passing
from vitrail.inside.feed import Feed, any_output
from vitrail.inside.trace import ALL, KINDS
from vitrail.models.plain import PlainViT

IMAGE = (3, 224, 224)


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
    from torchvision.models import vit_b_16

    return vit_b_16()


def open_clip_vit_b_32() -> nn.Module:
    import open_clip

    return open_clip.create_model("ViT-B-32")


def open_clip_model() -> nn.Module:
    from open_clip.model import CLIP

    vision = {"layers": 3, "width": 64, "head_width": 16, "patch_size": 16, "image_size": 48, "ls_init_value": 0.5}
    text = {"context_length": 8, "vocab_size": 50, "width": 32, "heads": 2, "layers": 2}
    return CLIP(512, vision, text)


class HandWritten(nn.Module):
    """Attention by softmax and matmul, or by einsum, inside a model nobody knows, in (tokens, batch, width) layout."""

    def __init__(self, einsum: bool = False) -> None:
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
        self.einsum = einsum

    def forward(self, images: torch.Tensor) -> dict[str, torch.Tensor]:
        x = self.embed(images).flatten(2).permute(2, 0, 1)
        x = torch.cat([self.cls.expand(-1, x.shape[1], -1), x])
        for m in self.layers:
            y = m["n1"](x)
            q, k, v = (m[n](y).view(*y.shape[:2], 4, 8).permute(1, 2, 0, 3) for n in "qkv")
            if self.einsum:
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
            block.forward = self._forward(block)  # type: ignore[method-assign]

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
    "timm:vit_tiny": Case(timm_model("vit_tiny_patch16_224"), 1, (14, 14), "cls", 12),
    "timm:vit_base": Case(
        timm_model("vit_base_patch16_224", depth=2, img_size=96), 1, (6, 6), "cls", 2, size=(3, 96, 96)
    ),
    "timm:deit_tiny": Case(timm_model("deit_tiny_patch16_224"), 1, (14, 14), "cls", 12),
    "timm:deit_tiny_distilled": Case(
        timm_model("deit_tiny_distilled_patch16_224"), 2, (14, 14), "distilled", 12
    ),
    "timm:deit3_small": Case(timm_model("deit3_small_patch16_224", depth=4), 1, (14, 14), "cls", 4, scaled=True),
    "timm:beit_base": Case(
        timm_model("beit_base_patch16_224", depth=2, img_size=96), 1, (6, 6), "mean", 2, size=(3, 96, 96), scaled=True
    ),
    "timm:eva02_tiny": Case(timm_model("eva02_tiny_patch14_224", depth=4), 1, (16, 16), "mean", 4),
    "timm:dinov2_reg4": Case(
        timm_model("vit_small_patch14_reg4_dinov2", img_size=224, num_classes=10, depth=4), 5, (16, 16), "cls", 4,
        scaled=True,
    ),
    "timm:siglip": Case(
        timm_model("vit_base_patch16_siglip_224", num_classes=10, depth=2, img_size=96), 0, (6, 6), "pool", 3,
        size=(3, 96, 96),
    ),
    "timm:not-square": Case(
        timm_model("vit_tiny_patch16_224", img_size=(96, 160)), 1, (6, 10), "cls", 12, size=(3, 96, 160)
    ),
    "timm:patch-8": Case(
        timm_model("vit_tiny_patch16_224", img_size=64, patch_size=8, depth=3), 1, (8, 8), "cls", 3, size=(3, 64, 64)
    ),
    "timm:gap": Case(timm_model("vit_tiny_patch16_224", global_pool="avg", class_token=False, depth=3), 0, (14, 14),
                     "mean", 3),
    "hf:vit": Case(hf("ViTForImageClassification", "ViTConfig"), 1, (3, 3), "cls", 3, size=(3, 48, 48)),
    "hf:vit-eager": Case(
        hf("ViTForImageClassification", "ViTConfig", attn_implementation="eager"), 1, (3, 3), "cls", 3, size=(3, 48, 48)
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
    "own:encoder": Case(Encoder, 0, (4, 4), "mean", 3, size=(3, 32, 32)),
    "own:folded-heads": Case(FoldedHeads, 1, (4, 4), "cls", 3, size=(3, 32, 32)),
    "own:registers": Case(lambda: PlainViT(prefix=3), 3, (4, 4), "cls", 3, size=(3, 32, 32)),
}  # fmt: skip


def build(name: str) -> tuple[Case, nn.Module, Feed]:
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
        return case, model, Feed((), {"input_ids": ids, "attention_mask": mask})
    return case, model, Feed((torch.randn(2, *case.size, dtype=torch.float64),))


def inputs_of(feed: Feed) -> Any:
    return dict(feed.kwargs) or feed.args[0]


@pytest.fixture(scope="module", params=CASES)
def one(request):
    return build(request.param)


def test_anatomy_is_found(one):
    case, model, feed = one
    anatomy = read(model, feed, None, case.target)
    assert anatomy.kind == "plain"
    assert anatomy.layout.prefix == case.prefix
    assert anatomy.layout.grid == case.grid
    assert anatomy.layout.readout == case.readout
    assert len(anatomy.organs) == case.layers
    assert anatomy.has_stream
    assert all(o.value and o.projection for o in anatomy.organs)
    assert any(o.scale for o in anatomy.organs) == case.scaled
    assert not anatomy.notes
    assert anatomy.model in str(anatomy)


def test_opened_model_says_the_same(one):
    case, model, feed = one
    with torch.no_grad():
        bare = any_output(feed.into(model))
    with passing(model, feed, read(model, feed, None, case.target), [dict.fromkeys(KINDS, ALL)]) as opened:
        assert torch.allclose(any_output(opened.output), bare, rtol=1e-10, atol=1e-10)


def test_attention_rows_sum_to_one_and_make_the_stream(one):
    """A is a distribution over keys, and A·V through the projection is what the block adds to X."""
    case, model, feed = one
    with passing(model, feed, read(model, feed, None, case.target), [dict.fromkeys(KINDS, ALL)]) as opened:
        blocks = [b for b in opened.blocks if not b.pool]
    for block in blocks:
        assert torch.allclose(block.A.sum(-1), torch.ones_like(block.A.sum(-1)))
        assert torch.allclose(block.A, block.O.softmax(-1), atol=1e-6)  # eager Hugging Face takes it in float32
        Z = (block.A @ block.V).transpose(1, 2).flatten(2)
        added = nn.functional.linear(Z, block.Wo, block.bo)
        added = added if block.gamma is None else added * block.gamma
        mid = block.X + added
        if block.norm_gain is None:  # pre-norm: the sum itself enters the MLP
            assert torch.allclose(mid, block.X_mid, atol=1e-6)
        if isinstance(model, FoldedHeads):
            continue  # folding copied the values away from the projection's result, so it cannot be told
        V = nn.functional.linear(block.V_in, block.Wv).view(*block.V_in.shape[:2], block.V.shape[1], -1).transpose(1, 2)
        bias = block.V - V
        assert torch.allclose(bias, bias[:, :, :1].expand_as(bias), atol=1e-6), "V is V_in·Wvᵀ up to a bias"


def test_every_method_gives_maps(one):
    case, model, feed = one
    outputs = any_output(feed.into(model)).shape[-1]
    target = case.target or [list(range(min(6, outputs)))]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MapWarning)  # clamped maps of single classes may well be empty
        found = vitrail.explain(model, inputs_of(feed), methods=list(vitrail.methods()), target=target)
    for name, explanation in found.items():
        assert torch.isfinite(explanation.grid).all(), name
        assert torch.isfinite(explanation.maps).all(), name
        assert not explanation.flat.all(), name
        assert float(explanation.maps.max()) == 1.0, name
        if case.grid is not None:
            assert explanation.maps.shape[2:] == feed.args[0].shape[2:]
            assert explanation.grid.shape[2:] == case.grid


@pytest.mark.filterwarnings("ignore::vitrail.errors.MapWarning")
def test_batch_is_its_images_one_by_one(one):
    case, model, feed = one
    if case.grid is None:
        pytest.skip("texts of different lengths are another matter: padding enters the attention")
    methods = list(vitrail.methods())
    images = feed.args[0]
    target = case.target or [0, 1]
    together = vitrail.explain(model, images, methods=methods, target=target)
    for i in range(2):
        alone = vitrail.explain(model, images[i : i + 1], methods=methods, target=case.target or [target[i]])
        for name in methods:
            scale = together[name].grid[i].abs().max()
            same = torch.allclose(together[name].grid[i], alone[name].grid[0], rtol=1e-9, atol=1e-9 * float(scale))
            assert same, name


@pytest.mark.filterwarnings("ignore::vitrail.errors.MapWarning")
def test_several_targets_are_single_calls(one):
    case, model, feed = one
    if case.target is not None:
        pytest.skip("the target is a function")
    methods = list(vitrail.methods())
    together = vitrail.explain(model, inputs_of(feed), methods=methods, target=[[0, 1], [1, 0]])
    for k in range(2):
        alone = vitrail.explain(model, inputs_of(feed), methods=methods, target=[k, 1 - k])
        for name in methods:
            assert torch.equal(together[name].grid[:, k], alone[name].grid[:, 0]), name


OTHERS = {
    "pvt_v2_b0": "pyramid", "pit_ti_224": "pyramid", "levit_128s": "pyramid", "mvitv2_tiny": "pyramid",
    "convit_tiny": "mixed", "cait_xxs24_224": "class-attention", "nest_tiny": "windowed",
    "swin_tiny_patch4_window7_224": "windowed", "twins_pcpvt_small": "pyramid",
}  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
def test_models_without_one_chain_of_global_attention_are_told_apart(name):
    import timm

    model = timm.create_model(name, num_classes=4).eval()
    images = torch.randn(1, *IMAGE)
    assert read(model, Feed((images,))).kind == OTHERS[name]
    with pytest.raises(vitrail.errors.NotApplicableError, match="does not apply"):
        vitrail.explain(model, images, "rollout")


@pytest.mark.parametrize("block", ["ParallelScalingBlock", "ParallelThingsBlock"])
def test_parallel_blocks_are_not_mistaken_for_a_chain(block):
    from timm.models import vision_transformer

    model = vision_transformer.VisionTransformer(
        img_size=32, patch_size=8, embed_dim=32, depth=3, num_heads=2, num_classes=4,
        block_fn=getattr(vision_transformer, block),
    ).eval()  # fmt: skip
    with pytest.raises(vitrail.errors.NotApplicableError):
        vitrail.explain(model, torch.randn(1, 3, 32, 32), "vtranm")


def test_a_clip_of_two_towers():
    """Texts and images in one call, in any order and number: the image's tower is explained."""
    import transformers

    small = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    config = transformers.CLIPConfig(
        text_config=small | {"vocab_size": 50, "max_position_embeddings": 8, "bos_token_id": 0, "eos_token_id": 1},
        vision_config=small | {"image_size": 32, "patch_size": 8}, projection_dim=16,
    )  # fmt: skip
    model = transformers.CLIPModel(config).eval()
    images, texts = torch.randn(2, 3, 32, 32), torch.randint(2, 50, (3, 6))
    feeds = ({"pixel_values": images, "input_ids": texts}, {"input_ids": texts, "pixel_values": images})
    first = vitrail.explain(model, feeds[0], "rollout", target=lambda output: output.logits_per_image)
    other = vitrail.explain(model, feeds[1], "transformer_mm", target=lambda output: output.logits_per_image)
    assert first.grid.shape == other.grid.shape == (2, 3, 4, 4)
    assert first.anatomy["attention"] == "plain, 2 layers"


@pytest.mark.parametrize(
    "make", [torchvision_vit_b_16, timm_model("vit_base_patch16_224"), timm_model("beit_base_patch16_224"),
             timm_model("vit_base_patch16_siglip_224", num_classes=10), timm_model("vit_small_patch14_reg4_dinov2",
             img_size=224, num_classes=10), open_clip_vit_b_32],
)  # fmt: skip
def test_published_sizes_say_the_same(make):
    """The published sizes themselves, in double precision: opened and bare models agree, and maps come out."""
    model = make().double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if float(parameter.abs().max()) < 0.05:
                parameter.add_(0.05 * torch.randn_like(parameter))
    feed = Feed((torch.randn(1, *IMAGE, dtype=torch.float64),))
    target = similar if make is open_clip_vit_b_32 else None
    with torch.no_grad():
        bare = any_output(feed.into(model))
    with passing(model, feed, read(model, feed, None, target), [{"A": ALL, "dA": ALL, "stream": ALL}]) as opened:
        assert torch.allclose(any_output(opened.output), bare, rtol=1e-10, atol=1e-10)
    found = vitrail.explain(model, feed.args[0], "transformer_mm", target=target or 3)
    assert not found.flat.any()
