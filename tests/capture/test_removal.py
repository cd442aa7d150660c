"""Token dropping against a forward pass written by hand."""

from __future__ import annotations

import pytest
import torch

import vitrail
from tests.capture.own_vit import OwnViT
from tests.scores.score_helpers import batch, count_forwards, removed_mask
from vitrail.capture.removal import TokenDropper
from vitrail.errors import NotApplicableError
from vitrail.fast.patch_convolutions import PatchProducts
from vitrail.scores.evaluator import Evaluator
from vitrail.scores.presets import find_presets
from vitrail.scores.ranks import kept_patches, patch_means, rank
from vitrail.testing import tiny_vit


def manual_forward(model, images, keep):
    """PlainViT's forward pass with a mask of the patches to keep."""
    x = model.embed(images).flatten(2).transpose(1, 2)
    prefix = model.prefix.shape[1]
    x = torch.cat([model.prefix.expand(len(x), -1, -1), x], 1) + model.position
    mask = torch.cat([torch.ones(len(x), prefix, dtype=torch.bool), keep], 1)
    x = x[mask].view(len(x), -1, x.shape[2])
    x = model.norm(model.blocks(x))
    return model.head(x[:, prefix:].mean(1) if model.pool else x[:, 0])


@pytest.mark.parametrize("options", [{}, {"prefix": 3}, {"pool": True}, {"pool": True, "prefix": 0}], ids=str)
def test_token_dropping_equals_a_manual_forward_pass(options):
    model = tiny_vit(**options)
    images, maps = batch(3)
    dropper = TokenDropper(model, images)
    ranks = rank(patch_means(maps, dropper.grid)).ranks
    for order in ("morf", "lerf"):
        for count in (0, 1, 9, 15):
            with torch.no_grad():
                expected = manual_forward(model, images, ~removed_mask(ranks, count, order))
            assert torch.allclose(dropper(images, kept_patches(ranks, count, order)), expected, atol=1e-5)
    no_patches = torch.empty(3, 0, dtype=torch.long)
    if options.get("pool"):
        with pytest.raises(NotApplicableError, match="none is left"):
            dropper(images, no_patches)
    else:
        expected = manual_forward(model, images, torch.zeros(3, 16, dtype=torch.bool))
        assert torch.allclose(dropper(images, no_patches), expected)


def test_tokens_are_dropped_where_patches_are_embedded_by_products():
    model = tiny_vit()
    images, maps = batch(3)
    dropper = TokenDropper(model, images)
    keep = kept_patches(rank(patch_means(maps, dropper.grid)).ranks, 9, "morf")
    expected = dropper(images, keep)
    with PatchProducts(model).used():
        assert torch.allclose(dropper(images, keep), expected, atol=1e-5)


def test_evaluator_drops_tokens():
    model, sizes = count_forwards(tiny_vit())
    images, maps = batch(5)
    preset = find_presets("vtranm-tokens")[0]
    evaluate = Evaluator(model, preset, batch=4)
    evaluate(images[:1], {"m": maps[:1]})  # trial passes and the empty image
    sizes.clear()
    records = evaluate(images, {"m": maps}, labels=torch.arange(5))
    curve = records.curves["m", "predicted", "morf", "tokens"]
    assert curve.units == 16
    assert sum(sizes) == 5 + 2 * 5 * len([k for k in curve.removed if 0 < k < 16])
    assert set(preset.curves[0].removed(16)) == set(curve.removed)
    assert preset.curves[0].removed(16)[3] == round(16 * 0.15)
    ranks = rank(patch_means(maps, (4, 4))).ranks
    for i, count in enumerate(curve.removed):
        expected = manual_forward(model, images, ~removed_mask(ranks, count, "morf")).log_softmax(1)
        assert torch.allclose(curve.outputs[:, i, 3], expected.amax(1), atol=1e-5)
    assert "fill tokens" in preset.label("positive(tokens)")


def library_models():
    import timm
    import transformers
    from torchvision.models import VisionTransformer

    small = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 2, "num_classes": 5}
    config = transformers.ViTConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, image_size=32, patch_size=8
    )
    yield timm.models.VisionTransformer(**small), lambda m: m.blocks[0]
    yield timm.models.VisionTransformer(**small, class_token=False, global_pool="avg"), lambda m: m.blocks[0]
    yield transformers.ViTForImageClassification(config), None
    yield VisionTransformer(32, 8, 2, 2, 32, 64, num_classes=5), lambda m: m.encoder.layers[0]


def test_tokens_of_library_models_are_dropped_before_the_first_block():
    images, _ = batch(2)
    keep = torch.tensor([[0, 3, 7, 15], [1, 2, 3, 4]])
    for model, first in library_models():
        model.eval()
        head = [m for m in model.modules() if isinstance(m, torch.nn.Linear)][-1]
        torch.nn.init.normal_(head.weight)  # some libraries initialise with zeros, which would hide errors
        dropper = TokenDropper(model, images)
        found = vitrail.capture.output_tensors.logits_of(dropper(images, keep))
        layers = [m for n, m in model.named_modules() if n.endswith((".layer.0", ".layers.0"))]
        block = first(model) if first else layers[0]
        prefix = torch.arange(dropper.prefix).expand(2, -1)
        index = torch.cat([prefix, keep + dropper.prefix], 1)[..., None]

        def gather_tokens(_, args, index=index):
            return (args[0].gather(1, index.expand(-1, -1, args[0].shape[2])), *args[1:])

        hook = block.register_forward_pre_hook(gather_tokens)
        with torch.no_grad():
            expected = vitrail.capture.output_tensors.logits_of(model(images))
        hook.remove()
        assert torch.allclose(found, expected, atol=1e-4), type(model)
        assert not torch.allclose(found, vitrail.capture.output_tensors.logits_of(model(images)), atol=1e-3)


def test_models_without_support_for_token_dropping_raise():
    import timm
    import transformers

    images, maps = batch(2)
    swin = timm.models.SwinTransformer(
        img_size=32, patch_size=2, window_size=4, embed_dim=16, depths=(1, 1), num_heads=(2, 2), num_classes=5
    )
    for make in (lambda: TokenDropper(swin, images), lambda: Evaluator(swin, "chefer21-tokens")(images, {"m": maps})):
        with pytest.raises(NotApplicableError, match="cannot be dropped"):
            make()
    small = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 2, "num_classes": 5}
    beit = timm.models.Beit(**small, use_rel_pos_bias=True)
    with pytest.raises(NotApplicableError, match="cannot be dropped"):
        TokenDropper(beit, images)
    config = transformers.BertConfig(
        vocab_size=30, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32
    )
    bert = transformers.BertForSequenceClassification(config)
    with pytest.raises(NotApplicableError, match="needs images"):
        TokenDropper(bert, torch.ones(1, 6, dtype=torch.long))


class OrderedAttention(OwnViT):
    """Attention with a bias for each pair of positions in the sequence, on tokens that are not in raster order."""

    def attend(self, index, x):
        block = self.blocks[index]
        b, n, width = x.shape
        q, k, v = block["qkv"](x).view(b, n, 3, 4, -1).permute(2, 0, 3, 1, 4)
        steps = torch.arange(n, dtype=x.dtype)
        bias = 0.5 * torch.sin(steps[:, None] - 2 * steps[None])
        z = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=bias.expand(b, 4, n, n))
        return block["proj"](z.transpose(1, 2).reshape(b, n, width))


@pytest.mark.parametrize("order", ["raster", "shuffled", "columns"])
def test_models_that_depend_on_the_order_of_tokens_are_refused_whatever_the_order(order):
    images = torch.randn(1, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    assert TokenDropper(OwnViT(order=order).eval(), images).patches == 16
    with pytest.raises(NotApplicableError, match="depends on the order"):
        TokenDropper(OrderedAttention(order=order).eval(), images)


class TokensFirst(torch.nn.Module):
    """A ViT whose tokens lie in front of the images, as in ``nn.TransformerEncoder`` and the first CLIP."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.cls = torch.nn.Conv2d(3, 16, 8, 8), torch.nn.Parameter(torch.randn(1, 1, 16))
        self.position = torch.nn.Parameter(torch.randn(17, 1, 16))
        layer = torch.nn.TransformerEncoderLayer(16, 2, 32, 0.0)
        self.encoder, self.head = torch.nn.TransformerEncoder(layer, 2), torch.nn.Linear(16, 5)

    def forward(self, images):
        x = self.embed(images).flatten(2).permute(2, 0, 1)
        x = torch.cat([self.cls.expand(-1, x.shape[1], -1), x]) + self.position
        return self.head(self.encoder(x)[0])


@pytest.mark.parametrize("count", [16, 17, 18])
def test_tokens_are_dropped_with_as_many_images_as_tokens(count):
    """Results with the images in front were taken for the stream, and images were dropped instead of tokens."""
    images = torch.randn(count, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    dropper = TokenDropper(TokensFirst().eval(), images[:1])
    keep = torch.stack([torch.randperm(16, generator=torch.Generator().manual_seed(i))[:5] for i in range(count)])
    alone = [dropper(images[i : i + 1], keep[i : i + 1]) for i in range(count)]
    torch.testing.assert_close(dropper(images, keep), torch.cat(alone), rtol=1e-4, atol=1e-5)
