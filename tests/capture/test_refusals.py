"""Refusals and rare branches of the capture: each says what was given and how to go on."""

from __future__ import annotations

import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import vitrail
from tests.capture.own_vit import OwnViT, twin
from vitrail.capture import verify
from vitrail.capture.attention_call import Call
from vitrail.capture.explicit_attention import causal_mask, merge_masks
from vitrail.capture.feature_order import FeatureOrder, feature_order
from vitrail.capture.finite import check_finite
from vitrail.capture.frozen import unwrap
from vitrail.capture.inputs import ModelInputs
from vitrail.capture.layout import measured_layout
from vitrail.capture.model_call import run_model
from vitrail.capture.output_tensors import any_output, fields_of, logits_of
from vitrail.capture.outputs import as_logits, maker
from vitrail.capture.tensor_difference import norm_difference
from vitrail.capture.trace import Block
from vitrail.errors import InputError, ModelError, NotApplicableError, TargetError

IMAGES = torch.randn(1, 3, 32, 32, generator=torch.Generator().manual_seed(1))


class Failing(nn.Module):
    """Raises what it is given."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error, self.weight = error, nn.Parameter(torch.zeros(1))

    def forward(self, _: Tensor) -> Tensor:
        raise self.error


@pytest.mark.parametrize(
    ("error", "kind", "match"),
    [
        (RuntimeError("Inference tensors cannot be saved"), ModelError, "inference_mode"),
        (NotImplementedError("Cannot copy out of meta tensor"), ModelError, "meta device"),
        (TypeError("missing 1 required positional argument: 'x'"), InputError, "dict with the arguments by name"),
        (RuntimeError("expected img_size 224"), InputError, "resize them"),
        (ValueError("the weather is bad"), ModelError, "failed in its own forward pass: ValueError: the weather"),
        (ValueError(), ModelError, "forward pass: ValueError"),
    ],
)
def test_a_failing_forward_becomes_one_line(error, kind, match):
    with pytest.raises(kind, match=match):
        run_model(Failing(error), ModelInputs((IMAGES,)))


def test_wrong_channels_are_named():
    with pytest.raises(InputError, match="1 channels, OwnViT takes 3"):
        vitrail.explain(OwnViT().eval(), IMAGES[:, :1], "rollout", target=1)


def test_out_of_memory_stays_what_it_is():
    with pytest.raises(torch.OutOfMemoryError):
        run_model(Failing(torch.OutOfMemoryError("no memory")), ModelInputs((IMAGES,)))


@pytest.mark.parametrize("model", [None, "timm:vit", 3])
def test_what_is_no_module_is_refused(model):
    with pytest.raises(ModelError, match="pass an nn"):
        unwrap(model)


def test_added_keys_of_multi_head_attention_are_refused():
    class Added(OwnViT):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(32, 4, batch_first=True, add_bias_kv=True)

        def attend(self, _: int, x: Tensor) -> Tensor:
            return self.attention(x, x, x, need_weights=False)[0]

    with pytest.raises(ModelError, match="add keys that belong to no token"):
        vitrail.explain(Added().eval(), IMAGES, "rollout", target=1)


def test_masks_of_multi_head_attention_join():
    padding = torch.tensor([[False, True]])
    both = merge_masks(torch.zeros(2, 2, 2), padding, 1, 2, torch.float32)
    assert both.shape == (1, 2, 2, 2)
    assert torch.isneginf(both[..., 1]).all()
    assert merge_masks(None, None, 1, 2, torch.float32) is None


def test_causal_attention_is_made_explicit():
    class Causal(OwnViT):
        def attend(self, index: int, x: Tensor) -> Tensor:
            block = self.blocks[index]
            q, k, v = block["qkv"](x).view(len(x), -1, 3, 4, 8).permute(2, 0, 3, 1, 4)
            z = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            return block["proj"](z.transpose(1, 2).flatten(2))

    model = Causal(order="cls-last").double().eval()
    assert torch.equal(
        causal_mask(torch.zeros(1, 1, 2, 4), torch.zeros(1, 1, 2, 4)), torch.tensor([[1, 0], [1, 1]]).bool()
    )
    rollout = vitrail.explain(model, IMAGES.double(), "rollout", target=1)
    assert rollout.grid.shape == (1, 1, 4, 4)
    assert (rollout.grid >= 0).all()


def test_outputs_that_are_not_finite_are_refused():
    model = twin()
    with pytest.raises(ModelError, match="output is not finite although its weights are"):
        check_finite(model, torch.tensor([[float("nan")]]))
    with torch.no_grad():
        model.head.weight[0, 0] = float("inf")
        model.head.bias[0] = float("nan")
    with pytest.raises(ModelError, match=r"head.weight and 1 more"):
        check_finite(model, torch.tensor([[float("nan")]]))
    check_finite(model, None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # the structure of such a model is not measured
        with pytest.raises(ModelError, match=r"weights are not finite: head.weight and 1 more"):
            vitrail.explain(model, IMAGES, "rollout")


def test_outputs_without_scores_are_described():
    assert logits_of({"only": torch.zeros(2, 3)}).shape == (2, 3)
    assert logits_of(torch.zeros(4)).shape == (4, 1)
    assert logits_of(torch.zeros(1, 2, 3)) is None
    assert any_output({"pooler_output": torch.ones(1, 2)}).shape == (1, 2)
    assert any_output([None, torch.ones(1, 2, 2)]).shape == (1, 2, 2)
    with pytest.raises(TargetError, match="no tensor of scores"):
        any_output({"words": ["a"]})
    assert fields_of({"x": torch.zeros(2)}) == "a dict with x (2,)"


def test_probabilities_in_half_precision_become_logits():
    half = torch.tensor([[0.25, 0.75]], dtype=torch.float16)
    assert torch.allclose(as_logits(half, "probabilities").softmax(1), half.float())
    assert torch.allclose(as_logits(half, "sigmoid").sigmoid(), half.float(), atol=1e-4)
    assert as_logits(None, "probabilities") is None


def test_the_maker_of_a_tensor_is_found_behind_its_views():
    source, product = torch.ones(2, 2), torch.zeros(2, 2)
    view = product[:]
    recent_calls = [(product, torch.matmul, (source, source)), (view, Tensor.view, (product, 2, 2))]
    assert maker(recent_calls, view)[0] is torch.matmul
    assert maker(recent_calls, source) is None


def test_a_norm_is_told_from_other_maps():
    rows = torch.randn(1, 9, 8, dtype=torch.float64)
    gain, bias = torch.randn(8, dtype=torch.float64), torch.randn(8, dtype=torch.float64)
    assert float(norm_difference(rows, F.layer_norm(rows, (8,), gain, bias))) == 0
    assert float(norm_difference(rows, F.rms_norm(rows, (8,), gain))) == 0
    assert float(norm_difference(rows, 0.5 * rows)) > 1e-2
    assert torch.isinf(norm_difference(rows[:, :2], rows[:, :2]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("n", [1, 2, 31, 32, 33, 1024, 1500])
def test_every_token_finds_its_pixels(n, dtype):
    leaf = torch.randn(1, 3, 1, n, dtype=dtype, requires_grad=True)
    V = leaf.permute(0, 2, 3, 1) * torch.linspace(1, 2, n, dtype=dtype)[None, None, :, None]
    found, shared = verify.owners(V, leaf)
    assert torch.equal(found, torch.arange(n)[None])
    assert shared == 0
    assert verify.owners(V.detach(), leaf) is None


def test_pixels_of_several_tokens_are_shared():
    leaf = torch.randn(1, 3, 1, 8, requires_grad=True)
    V = (leaf + 0.1 * leaf.flip(-1)).permute(0, 2, 3, 1)
    found, shared = verify.owners(V, leaf)
    assert torch.equal(found, torch.arange(8)[None])
    assert shared > 1e-3


def test_calls_without_a_graph_all_count():
    calls = [Call(Block(), (1, 1, 2, 2), None)]
    assert verify.reaching(calls, torch.zeros(1, 2)) == ([0], {})


def test_pixels_without_tokens_have_no_layout():
    assert measured_layout(torch.full((4, 4), -1), 3) is None


def test_cells_of_one_row():
    assert feature_order(torch.zeros(2, 2, 1, 1)) is FeatureOrder.RASTER
    row = torch.stack([torch.zeros(2, 1, 5), torch.arange(5.0).expand(2, 1, 5)], 1)
    assert feature_order(row) is FeatureOrder.RASTER
    assert feature_order(row.flip(3)) is FeatureOrder.OTHER


def test_other_images_of_a_text_are_refused():
    from vitrail.methods.registry import find

    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16, vocab_size=30
    )
    model = transformers.BertForSequenceClassification(config).eval()
    given = {"input_ids": torch.tensor([[1, 2, 3, 4]])}
    for name in ("rise", "occlusion", "centre"):
        assert find(name)[1].reason_against("text")
        with pytest.raises(NotApplicableError, match="text"):
            vitrail.explain(model, given, name, target=1)


def test_a_clip_model_without_texts_says_what_it_also_takes():
    transformers = pytest.importorskip("transformers")
    width = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    config = transformers.CLIPConfig(
        text_config=width | {"vocab_size": 20}, vision_config=width | {"image_size": 32, "patch_size": 16}
    )
    with pytest.raises(ModelError, match=r"passed as input_ids.* also takes pixel_values") as caught:
        vitrail.explain(transformers.CLIPModel(config).eval(), torch.zeros(1, 3, 32, 32), "rollout", target=0)
    assert "pixels" not in str(caught.value).replace("pixel_values", "")


def test_an_encoder_and_a_decoder_of_two_lengths_are_named_as_such():
    transformers = pytest.importorskip("transformers")
    config = transformers.T5Config(
        d_model=16, d_kv=8, d_ff=16, num_layers=2, num_heads=2, vocab_size=20, decoder_start_token_id=0
    )
    model = transformers.T5ForConditionalGeneration(config).eval()
    words = {"input_ids": torch.randint(2, 20, (1, 6)), "decoder_input_ids": torch.randint(2, 20, (1, 3))}
    with pytest.raises(NotApplicableError, match="such as an encoder and a decoder") as caught:
        vitrail.explain(model, words, "gradtoken", target=lambda o: o.logits[:, -1, 3])
    advised = str(caught.value).rpartition("use ")[2].removesuffix(" instead").split(", ")
    assert "gradient_x_input" in advised
    for method in advised:  # what is advised works
        quick = {name: dict(vitrail.methods()[name].quick) for name in [method]}
        assert vitrail.explain(model, words, methods=quick, target=lambda o: o.logits[:, -1, 3])


def test_relevance_of_whole_numbers_names_the_input():
    from vitrail.models.plain_vit import PlainViT

    with pytest.raises(vitrail.errors.VitrailError) as caught:
        vitrail.explain(PlainViT().eval(), torch.randn(1, 3, 32, 32), "attnlrp", target=lambda o: o.detach()[:, 1])
    assert "does not depend on its input" not in str(caught.value)


class Around(nn.Module):
    """A model of the user inside other code."""

    def __init__(self, call):
        super().__init__()
        self.model, self.call = OwnViT(), call

    def forward(self, images):
        return self.call(self.model, images)


def under_no_grad(model, images):
    with torch.no_grad():
        return model(images)


def several_crops(model, images):
    crops = [images, images.flip(-1), images.flip(-2)]
    return torch.stack([model(crop) for crop in crops]).mean(0)


def two_copies(model, images):
    return model(torch.cat([images, images.flip(-1)]))[: len(images)]


@pytest.mark.parametrize(
    ("call", "kind", "match"),
    [
        (under_no_grad, NotApplicableError, "attention without gradients .* use occlusion, rise"),
        (lambda model, images: model(images.detach()), NotApplicableError, "detaches its input"),
        (lambda model, images: checkpoint(model, images, use_reentrant=False), ModelError, "torch.utils.checkpoint"),
        (several_crops, NotApplicableError, "attention layers side by side"),
        (two_copies, NotApplicableError, "several crops or copies"),
    ],
)
def test_code_around_a_model_is_refused_for_the_true_reason(call, kind, match):
    with pytest.raises(kind, match=match):
        vitrail.explain(Around(call).eval(), IMAGES, "transformer_mm", target=1)


def test_averaged_crops_are_class_scores():
    model = Around(several_crops).eval()
    found = vitrail.explain(model, IMAGES, "gradient_x_input", target=1).maps[0, 0]
    leaf = IMAGES.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(model(leaf)[0, 1], leaf)
    expected = vitrail.explain(model, IMAGES, "gradient_x_input", target=lambda out: out[:, 1]).maps[0, 0]
    assert torch.equal(found, expected)
    assert torch.corrcoef(torch.stack([found.flatten(), (gradient * IMAGES).sum(1)[0].flatten()]))[0, 1] > 0.99
