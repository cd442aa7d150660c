"""Hugging Face families off the beaten path, each with the truth known by construction."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import vitrail
from tests.combinations import combinations
from vitrail.capture.inputs import ModelInputs
from vitrail.capture.structure import read_structure
from vitrail.errors import GuessWarning, MapWarning, ModelError, NotApplicableError
from vitrail.testing import tiny_vit

transformers = pytest.importorskip("transformers")

SIZE, PATCH = 48, 16
VISION = {
    "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 48, "image_size": SIZE,
    "patch_size": PATCH, "num_labels": 5,
}  # fmt: skip
TEXT = {
    "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 48, "vocab_size": 60,
    "num_labels": 3, "pad_token_id": 0,
}  # fmt: skip


def build(model: str, config: str, **options: Any) -> nn.Module:
    torch.manual_seed(2)
    made = getattr(transformers, model)(getattr(transformers, config)(**options)).double().eval()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    return made


def explain(model: nn.Module, inputs: Any, method: str, target: Any = 1) -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MapWarning)
        return vitrail.explain(model, inputs, method, target=target).grid


def images(count: int = 2, size: int = SIZE) -> Tensor:
    return torch.randn(count, 3, size, size, dtype=torch.float64, generator=torch.Generator().manual_seed(3))


# -- images -----------------------------------------------------------------------------------------------------------


def test_detection_tokens_of_yolos_are_a_suffix():
    model = build("YolosForObjectDetection", "YolosConfig", **VISION | {"image_size": (SIZE, SIZE)},
                  num_detection_tokens=7)  # fmt: skip

    def target(output: Any) -> Tensor:
        return output.logits[:, 2, 1]

    layout = read_structure(model, ModelInputs((images(),)), None, target).layout
    assert (layout.prefix, layout.suffix, layout.grid, layout.readout) == (1, 7, (3, 3), (12,))
    assert explain(model, images(), "transformer_mm", target).shape == (2, 1, 3, 3)


def test_the_pool_of_siglip_classifiers_is_not_on_the_path():
    model = build("SiglipForImageClassification", "SiglipConfig", vision_config=VISION, num_labels=5)
    found = read_structure(model, ModelInputs((images(),)))
    assert (found.layout.readout, found.pooled, len(found.layers)) == ("mean", False, 3)
    before = explain(model, images(), "transformer_mm")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".head." in name:
                parameter.normal_()
    assert torch.equal(explain(model, images(), "transformer_mm"), before)


def test_a_pyramid_is_refused_by_methods_that_chain_attention():
    model = build("HieraForImageClassification", "HieraConfig", image_size=[64, 64], embed_dim=16, depths=[1, 1, 1],
                  num_heads=[1, 2, 4], num_labels=5, masked_unit_size=[4, 4], patch_size=[7, 7],
                  query_stride=[2, 2], num_query_pool=2)  # fmt: skip
    with pytest.raises(NotApplicableError):
        explain(model, images(1, 64), "rollout")
    assert explain(model, images(1, 64), "gradient_x_input").any()


def test_a_clip_vision_tower_has_no_classes():
    model = build("CLIPVisionModelWithProjection", "CLIPVisionConfig", **VISION)
    with pytest.raises(vitrail.errors.TargetError, match="no class scores"):
        vitrail.explain(model, images(), "rollout")


@pytest.mark.parametrize("implementation", ["sdpa", "eager", "flex_attention"])
def test_every_implementation_of_attention_gives_the_same_maps(implementation):
    expected = explain(build("ViTForImageClassification", "ViTConfig", **VISION), images(), "transformer_mm")
    model = build("ViTForImageClassification", "ViTConfig", **VISION)
    model.config._attn_implementation = implementation
    assert torch.allclose(explain(model, images(), "transformer_mm"), expected, rtol=1e-8)
    assert model.config._attn_implementation == implementation


@pytest.mark.parametrize("train", [False, True])
def test_activation_checkpointing_changes_nothing(train):
    model = build("ViTForImageClassification", "ViTConfig", **VISION)
    expected = explain(model, images(), "transformer_mm")
    model.gradient_checkpointing_enable()
    model.train(train)
    assert torch.equal(explain(model, images(), "transformer_mm"), expected)
    assert model.is_gradient_checkpointing
    assert model.training == train


# -- adapters ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layers", "dora"), combinations([["o_proj"], ["q_proj", "v_proj"], ["fc1", "fc2"]], [False, True])
)
def test_peft_adapters_give_the_maps_of_merged_weights(layers, dora):
    peft = pytest.importorskip("peft")
    base = build("ViTForImageClassification", "ViTConfig", **VISION)
    names = {n.rsplit(".", 1)[-1] for n, m in base.named_modules() if isinstance(m, nn.Linear)}
    if not set(layers) <= names:
        layers = sorted(n for n in names if n != "classifier")[: len(layers)]
    torch.manual_seed(5)
    model = peft.get_peft_model(
        base, peft.LoraConfig(r=2, lora_alpha=4, target_modules=layers, use_dora=dora, init_lora_weights=False)
    ).double().eval()  # fmt: skip
    methods = ["transformer_mm", "vtranm", "bi_attn:token,steps=2", "attnlrp", "transformer_attribution", "lrp"]
    unmerged = {m: explain(model, {"pixel_values": images()}, m) for m in methods}
    merged = model.merge_and_unload()
    for method, grid in unmerged.items():
        expected = explain(merged, {"pixel_values": images()}, method)
        assert torch.allclose(grid, expected, rtol=1e-4, atol=1e-7 * float(expected.abs().max())), method


# -- texts ------------------------------------------------------------------------------------------------------------

DECODERS = {
    "gpt2": ("GPT2ForSequenceClassification", "GPT2Config",
             {"n_embd": 32, "n_layer": 3, "n_head": 4, "vocab_size": 60, "num_labels": 3, "pad_token_id": 0}),
    "llama": ("LlamaForSequenceClassification", "LlamaConfig", TEXT | {"num_key_value_heads": 2}),
    "qwen2": ("Qwen2ForSequenceClassification", "Qwen2Config", TEXT | {"num_key_value_heads": 2}),
    "mistral": ("MistralForSequenceClassification", "MistralConfig", TEXT | {"num_key_value_heads": 1}),
}  # fmt: skip
ENCODERS = {
    "bert": ("BertForSequenceClassification", "BertConfig", TEXT),
    "roberta": ("RobertaForSequenceClassification", "RobertaConfig", TEXT),
    "distilbert": ("DistilBertForSequenceClassification", "DistilBertConfig",
                   {"dim": 32, "n_layers": 3, "n_heads": 4, "hidden_dim": 48, "vocab_size": 60, "num_labels": 3}),
    "modernbert": ("ModernBertForSequenceClassification", "ModernBertConfig",
                   TEXT | {"global_attn_every_n_layers": 1, "attention_dropout": 0.0}),
    "electra": ("ElectraForSequenceClassification", "ElectraConfig", TEXT | {"embedding_size": 32}),
}  # fmt: skip
#: The others are written as one of these are.
DISTINCT = ("gpt2", "llama", "bert", "modernbert")
LENGTHS = (9, 5, 7)


def padded(side: str = "right") -> tuple[dict[str, Tensor], list[dict[str, Tensor]]]:
    """A padded batch, and its texts one by one."""
    generator = torch.Generator().manual_seed(6)
    texts = [torch.randint(3, 60, (n,), generator=generator) for n in LENGTHS]
    ids, mask = torch.zeros(len(texts), max(LENGTHS), dtype=torch.long), torch.zeros(len(texts), max(LENGTHS)).long()
    for i, text in enumerate(texts):
        where = slice(0, len(text)) if side == "right" else slice(max(LENGTHS) - len(text), None)
        ids[i, where], mask[i, where] = text, 1
    alone = [{"input_ids": t[None], "attention_mask": torch.ones_like(t)[None]} for t in texts]
    return {"input_ids": ids, "attention_mask": mask}, alone


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[] if n in DISTINCT else pytest.mark.slow) for n in (*DECODERS, *ENCODERS)],
)
@pytest.mark.filterwarnings("ignore::vitrail.errors.MapWarning")
def test_padded_texts_have_the_scores_they_have_alone(name):
    model, config, options = {**DECODERS, **ENCODERS}[name]
    made, methods = build(model, config, **options), ["rollout", "transformer_mm", "gradtoken", "vtranm"]
    batch, alone = padded()
    together = vitrail.explain(made, batch, methods=methods, target=1)
    for i, text in enumerate(alone):
        for method, found in vitrail.explain(made, text, methods=methods, target=1).items():
            single, padded_text = found.grid[0, 0], together[method].grid[i, 0]
            own = padded_text[: len(single)]
            assert torch.allclose(own, single, rtol=1e-6, atol=1e-9 * float(single.abs().max())), (method, i)
            assert not padded_text[len(single) :].any(), (method, i)


@pytest.mark.parametrize("name", DECODERS)
def test_decoders_read_the_last_token_of_each_text(name):
    model, config, options = DECODERS[name]
    made = build(model, config, **options)
    batch, _ = padded()
    assert read_structure(made, ModelInputs((), batch)).layout.readout == (LENGTHS[0] - 1,)
    with torch.no_grad():
        made.get_input_embeddings().weight[batch["input_ids"][1, LENGTHS[1] - 1]] += 1
    assert explain(made, batch, "raw_attention").any()


def test_an_encoder_and_a_decoder_are_no_single_chain():
    model = build("BartForSequenceClassification", "BartConfig", d_model=32, encoder_layers=2, decoder_layers=2,
                  encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=48, decoder_ffn_dim=48,
                  vocab_size=60, num_labels=3, pad_token_id=1, eos_token_id=2)  # fmt: skip
    ids = torch.randint(3, 60, (1, 8))
    ids[:, -1] = 2
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", GuessWarning)
        assert explain(model, inputs, "rollout").any()
        with pytest.raises(NotApplicableError, match=r"several streams of tokens.*use .*transformer_mm"):
            explain(model, inputs, "gradsam")


# -- named refusals ---------------------------------------------------------------------------------------------------


def test_models_that_cannot_be_read_are_refused_by_name():
    from vitrail.testing import tiny_vit

    x = torch.randn(1, 3, 32, 32)
    with torch.device("meta"):
        meta = tiny_vit()
    for model, words in (
        (meta, "meta device"),
        ("timm:vit_tiny_patch16_224", "nn.Module"),
        (None, "missing"),
        (torch.jit.trace(tiny_vit(), x), "TorchScript"),
    ):
        with pytest.raises(ModelError, match=words):
            vitrail.explain(model, x, "rollout")


def test_compiled_models_run_as_their_plain_selves():
    from vitrail.testing import tiny_vit

    x = torch.randn(1, 3, 32, 32)
    expected = vitrail.explain(tiny_vit(), x, "transformer_mm", target=1).grid
    whole = torch.compile(tiny_vit(), backend="eager")
    blocks = tiny_vit()
    blocks.blocks[1].compile(backend="eager")
    for model in (whole, blocks):
        assert torch.allclose(vitrail.explain(model, x, "transformer_mm", target=1).grid, expected, atol=1e-6)


def test_dynamic_int8_models_are_refused_or_explained_by_outputs():
    from vitrail.testing import tiny_vit

    model = tiny_vit()
    try:
        quantised = torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, dtype=torch.qint8)
    except Exception as error:  # noqa: BLE001 - not built into every torch
        pytest.skip(f"no dynamic quantisation here: {error}")
    x = torch.randn(1, 3, 32, 32)
    with pytest.raises(NotApplicableError, match="int8 layers"):
        vitrail.explain(quantised, x, "transformer_mm", target=1)
    with pytest.raises(NotApplicableError, match="no gradient at its input"):
        vitrail.explain(quantised, x, "gradient_x_input", target=1)
    assert vitrail.explain(quantised, x, "occlusion", target=1).grid.any()


# -- models without attention -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["resnet10t", pytest.param("convnext_atto", marks=pytest.mark.slow)])
def test_models_without_attention_work_with_methods_that_need_none(name):
    timm = pytest.importorskip("timm")
    torch.manual_seed(0)
    model = timm.create_model(name, num_classes=7).eval()
    batch = images(2, 64).float()
    for method in ("gradcam_features", "cdam"):
        together = explain(model, batch, method)
        assert together.shape == (2, 1, 2, 2)
        assert torch.allclose(together[1:], explain(model, batch[1:], method), atol=1e-5)
    for method in ("gradient_x_input", "occlusion", "rise:masks=8", "centre"):
        assert explain(model, batch, method).any(), method
    with pytest.raises(NotApplicableError, match="no attention that was recognised"):
        explain(model, batch, "rollout")


def test_flex_attention_in_a_model_of_ones_own_is_seen():
    flex = pytest.importorskip("torch.nn.attention.flex_attention")
    from tests.capture.own_vit import SPELLINGS, OwnViT, twin

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return flex.flex_attention(q, k, v)

    expected = vitrail.explain(twin(), images(2, 32), "transformer_mm", target=1).grid
    SPELLINGS["flex"] = attend
    try:
        model = OwnViT(spelling="flex").double().eval()
        model.load_state_dict(twin().state_dict())
        try:
            model(images(1, 32))
        except Exception as error:  # noqa: BLE001 - not available for this type or device
            pytest.skip(f"flex_attention does not run here: {type(error).__name__}")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = vitrail.explain(model, images(2, 32), "transformer_mm", target=1).grid
        assert torch.allclose(found, expected, rtol=1e-6)
    finally:
        del SPELLINGS["flex"]


# -- forms of attention and of inputs ----------------------------------------------------------------------------------


def test_all_that_queries_do_counts_where_logits_have_terms_of_positions():
    """DeBERTa's queries meet keys and positions; the gradient at them is that of both."""
    from vitrail.capture.forward import forward_pass
    from vitrail.capture.trace import LAST

    model = build("DebertaV2ForSequenceClassification", "DebertaV2Config", **TEXT, relative_attention=True,
                  pos_att_type=["c2p", "p2c"], max_relative_positions=8, type_vocab_size=0)  # fmt: skip
    ids = torch.randint(1, 60, (2, 16), generator=torch.Generator().manual_seed(4))
    given = ModelInputs((), {"input_ids": ids, "attention_mask": torch.ones_like(ids)})
    found = read_structure(model, given)
    assert found.kind == "plain" and all(layer.product for layer in found.layers)  # noqa: PT018
    with forward_pass(model, given, found, [{"dQ": LAST, "Q": LAST}]) as one:
        block = one.trace(one.output.logits[:, 1]).blocks[-1]
    seen: list[Tensor] = []
    layer = model.deberta.encoder.layer[-1].attention.self.query_proj
    handle = layer.register_forward_hook(lambda *a: seen.append(a[-1]) or a[-1].retain_grad())
    model(**given.kwargs).logits[:, 1].sum().backward()
    handle.remove()
    expected = seen[0].grad.view(2, 16, 4, 8).transpose(1, 2)
    assert torch.allclose(block.Q, seen[0].view(2, 16, 4, 8).transpose(1, 2))
    assert torch.allclose(block.dQ, expected, atol=1e-10)
    model.zero_grad()


@pytest.mark.parametrize(
    ("model", "config", "options"),
    [
        ("GPT2ForSequenceClassification", "GPT2Config", {"n_embd": 32, "n_layer": 2, "n_head": 4}),
        ("RobertaForSequenceClassification", "RobertaConfig", {"pad_token_id": 0, "max_position_embeddings": 40}),
        ("CTRLForSequenceClassification", "CTRLConfig", {"n_embd": 32, "n_layer": 2, "n_head": 4, "dff": 48}),
    ],
)
def test_vectors_of_padded_texts_have_the_gradients_they_have_alone(model, config, options):
    """Padding, positions and the last token are found by the words, which stay beside the vectors."""
    built = build(model, config, **TEXT | options)
    ids = torch.randint(1, 60, (2, 12), generator=torch.Generator().manual_seed(4))
    mask = torch.ones_like(ids)
    ids[1, 7:] = mask[1, 7:] = 0
    together = explain(built, {"input_ids": ids, "attention_mask": mask}, "gradient_x_input")
    for i, length in enumerate((12, 7)):
        own = {"input_ids": ids[i : i + 1, :length], "attention_mask": mask[i : i + 1, :length]}
        expected = explain(built, own, "gradient_x_input")[0, 0]
        assert torch.allclose(together[i, 0, : len(expected)], expected, atol=1e-8)


def test_flattened_patches_are_tokens():
    """SigLIP 2 takes patches that were cut out already."""
    vision = {k: v for k, v in VISION.items() if k != "num_labels"}
    model = build("Siglip2ForImageClassification", "Siglip2Config", vision_config=vision | {"num_patches": 16},
                  num_labels=5)  # fmt: skip
    patches = torch.randn(1, 16, 3 * PATCH * PATCH, dtype=torch.float64)
    given = {
        "pixel_values": patches,
        "pixel_attention_mask": torch.ones(1, 16, dtype=torch.long),
        "spatial_shapes": torch.tensor([[4, 4]]),
    }
    found = read_structure(model, ModelInputs((), given))
    assert (found.kind, found.tokens, found.layout.prefix) == ("plain", 16, 0)
    assert not found.failed
    gradient = torch.autograd.grad(model(**given | {"pixel_values": patches.requires_grad_()}).logits[0, 1], patches)[0]
    expected = (gradient * patches).sum(-1)[0].detach()
    shown = explain(model, given | {"pixel_values": patches.detach()}, "gradient_x_input").flatten()
    assert torch.allclose(shown, expected, atol=1e-8)
    for method in ("transformer_mm", "attcat", "attnlrp", "random"):
        assert explain(model, given | {"pixel_values": patches.detach()}, method).isfinite().all()


def test_a_model_that_does_not_name_its_embedding_layer_is_refused_by_name():
    model = build(*ENCODERS["bert"][:2], **TEXT)
    ids = torch.randint(1, 60, (1, 8))
    given = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    model.get_input_embeddings = lambda: None
    with pytest.raises(NotApplicableError, match="does not name the layer"):
        vitrail.explain(model, given, "gradient_x_input", target=1)
    model.get_input_embeddings = nn.Identity
    with pytest.raises(NotApplicableError, match="not one vector a word"):
        vitrail.explain(model, given, "gradient_x_input", target=1)
    other = nn.Embedding(60, 32).double()
    model.get_input_embeddings = lambda: other
    with pytest.raises(NotApplicableError, match="was called with these tokens"):
        vitrail.explain(model, given, "gradient_x_input", target=1)


# -- accelerate --------------------------------------------------------------------------------------------------------


def test_hooks_of_accelerate_change_nothing():
    accelerate = pytest.importorskip("accelerate")
    model, given = tiny_vit(), torch.randn(2, 3, 32, 32)
    methods = ["rollout", "transformer_mm", "vtranm", "attnlrp"]
    expected = vitrail.explain(model, given, methods=methods, target=1)
    hooked = accelerate.dispatch_model(copy.deepcopy(model), {"": "cpu"}, force_hooks=True, main_device="cpu")
    assert hasattr(hooked, "_hf_hook")
    for name, found in vitrail.explain(hooked, given, methods=methods, target=1).items():
        assert torch.equal(found.grid, expected[name].grid), name


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs two devices")
def test_weights_on_several_devices_are_refused_by_name():
    model = tiny_vit()
    model.head.to("cuda")
    with pytest.raises(ModelError, match="several devices"):
        vitrail.explain(model, torch.randn(1, 3, 32, 32), "rollout", target=1)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_flex_attention_on_a_gpu_gives_the_maps_of_the_fused_kernel():
    flex = pytest.importorskip("torch.nn.attention.flex_attention").flex_attention
    from tests.capture.own_vit import SPELLINGS, twin

    SPELLINGS["flex"] = flex
    try:
        model, plain = (twin(spelling=name).float().cuda() for name in ("flex", "fused"))
        given = torch.randn(2, 3, 32, 32, device="cuda")
        methods = ["rollout", "transformer_mm", "gradtoken", "vtranm"]
        expected = vitrail.explain(plain, given, methods=methods, target=1)
        for name, found in vitrail.explain(model, given, methods=methods, target=1).items():
            largest = float(expected[name].grid.abs().max())
            assert torch.allclose(found.grid, expected[name].grid, atol=1e-4 * largest), name
    finally:
        del SPELLINGS["flex"]
