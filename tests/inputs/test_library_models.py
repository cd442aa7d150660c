"""Library models of several inputs: a batch of examples has the maps of its examples alone."""

import pytest
import torch
from torch import nn

import vitrail
from vitrail.errors import StructureDiffersError
from vitrail.inputs.user_inputs import to_model_inputs
from vitrail.models import describe
from vitrail.models.plain_vit import PlainViT
from vitrail.testing import tiny_vit

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore::vitrail.errors.GuessWarning", "ignore::vitrail.errors.MapWarning")
SMALL = {"hidden_size": 32, "intermediate_size": 37, "num_hidden_layers": 2, "num_attention_heads": 4}
WORDS = {"vocab_size": 99, "max_position_embeddings": 16, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}


def built(name, config, **options):
    torch.manual_seed(0)
    return getattr(transformers, name)(getattr(transformers, config)(**options)).eval()


def ids(texts):
    return torch.randint(3, 99, (texts, 7), generator=torch.Generator().manual_seed(texts))


def noise(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def clip():
    vision = SMALL | {"image_size": 32, "patch_size": 8}
    model = built("CLIPModel", "CLIPConfig", text_config=SMALL | WORDS, vision_config=vision, projection_dim=16)
    return model, {"pixel_values": noise(2, 3, 32, 32), "input_ids": ids(2)}


def siglip2():
    text = SMALL | {"vocab_size": 99, "max_position_embeddings": 7, "projection_size": 32}
    vision = SMALL | {"num_patches": 16, "patch_size": 8}
    shapes = torch.tensor([[4, 4], [4, 4]])
    given = {
        "pixel_values": noise(2, 16, 192),
        "pixel_attention_mask": torch.ones(2, 16).int(),
        "spatial_shapes": shapes,
    }
    return built("Siglip2Model", "Siglip2Config", text_config=text, vision_config=vision), given | {"input_ids": ids(2)}


def vilt():
    sizes = {"image_size": 32, "patch_size": 8, "num_labels": 5, "max_image_length": 16}
    model = built("ViltForQuestionAnswering", "ViltConfig", **SMALL, vocab_size=99, max_position_embeddings=16, **sizes)
    return model, {"pixel_values": noise(2, 3, 32, 32), "input_ids": ids(2), "attention_mask": torch.ones(2, 7).long()}


def visual_bert():
    sizes = {"vocab_size": 99, "max_position_embeddings": 16, "visual_embedding_dim": 20, "num_labels": 5}
    masks = {"attention_mask": torch.ones(2, 7).long(), "visual_attention_mask": torch.ones(2, 4).long()}
    given = {"input_ids": ids(2), "visual_embeds": noise(2, 4, 20), **masks}
    return built("VisualBertForQuestionAnswering", "VisualBertConfig", **SMALL, **sizes), given


def t5():
    sizes = {"d_model": 32, "d_kv": 8, "d_ff": 37, "num_layers": 2, "num_heads": 4, "vocab_size": 99, "num_labels": 3}
    special = {"decoder_start_token_id": 0, "eos_token_id": 1, "pad_token_id": 0}
    words = ids(2)
    words[:, -1] = 1
    return built("T5ForSequenceClassification", "T5Config", **sizes, **special), {"input_ids": words}


def video():
    sizes = {"image_size": 16, "patch_size": 8, "num_frames": 4, "tubelet_size": 2, "num_labels": 4}
    return built("VideoMAEForVideoClassification", "VideoMAEConfig", **SMALL, **sizes), noise(2, 4, 3, 16, 16)


def audio():
    sizes = {"patch_size": 4, "frequency_stride": 4, "time_stride": 4, "max_length": 16, "num_mel_bins": 16}
    return built("ASTForAudioClassification", "ASTConfig", **SMALL, **sizes, num_labels=4), noise(2, 16, 16)


CASES = {
    "clip rollout": (clip, "rollout"), "clip occlusion": (clip, "occlusion"), "clip attnlrp": (clip, "attnlrp"),
    "siglip2 leadlight": (siglip2, "leadlight"),
    "visual_bert leadlight": (visual_bert, "leadlight"),
    "visual_bert integrated_gradients": (visual_bert, "integrated_gradients"),
    "t5 integrated_gradients": (t5, "integrated_gradients"), "video leadlight": (video, "leadlight"),
    "audio rollout": (audio, "rollout"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_batch_has_the_maps_of_its_examples(case):
    build, method = CASES[case]
    model, given = build()
    options = {"steps": 4} if method == "integrated_gradients" else {}
    together = vitrail.explain(model, given, method, target=1, **options).grid
    whole = to_model_inputs(given, describe(model))
    for i in range(2):
        one = whole.select(slice(i, i + 1))
        alone = vitrail.explain(model, one.args[0] if one.args else one.kwargs, method, target=1, **options).grid
        assert torch.allclose(together[i], alone[0], atol=1e-5)
    assert not torch.allclose(together[0], together[1], atol=1e-5)


def test_patches_in_a_random_order_are_refused_for_that_reason():
    model, given = vilt()
    with pytest.raises(StructureDiffersError, match="the order of the patches"):
        vitrail.explain(model, given, "leadlight", target=1)


def test_a_stream_on_a_grid_is_the_same_as_in_a_row():
    class OnGrid(PlainViT):
        """The tokens lie on a grid between blocks, as in SAM."""

        def forward(self, images):
            x = self.embed(images).permute(0, 2, 3, 1) + self.position.unflatten(1, (4, 4))
            for block in self.blocks:
                y = block.norm1(x).flatten(1, 2)
                q, k, v = block.qkv(y).unflatten(-1, (3, 4, -1)).permute(2, 0, 3, 1, 4)
                z = nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
                x = x + block.proj(z).view(x.shape)
                x = x + block.mlp(block.norm2(x))
            return self.head(self.norm(x).flatten(1, 2).mean(1))

    in_a_row = tiny_vit(pool=True, prefix=0).eval()
    on_grid = tiny_vit(pool=True, prefix=0).eval()
    on_grid.__class__ = OnGrid
    images = noise(2, 3, 32, 32)
    assert torch.allclose(on_grid(images), in_a_row(images), atol=1e-5)
    for method in ("leadlight", "vtranm", "attcat"):
        found, expected = (vitrail.explain(m, images, method, target=1).grid for m in (on_grid, in_a_row))
        assert torch.allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("method", ["attnlrp", "transformer_attribution"])
def test_one_number_that_depends_on_the_image_is_a_scale(method):
    class Scaled(nn.Module):
        def __init__(self, scaled):
            super().__init__()
            self.vit, self.scaled = tiny_vit(), scaled

        def forward(self, images):
            logits = self.vit(images)
            return logits * (2 + 0 * logits.sum()) if self.scaled else logits * 2

    images = noise(1, 3, 32, 32)
    found, expected = (vitrail.explain(Scaled(s).eval(), images, method, target=1).grid for s in (True, False))
    assert torch.allclose(found, expected, atol=1e-6)
