"""The same checks on every family of models: nothing changes, everything is found, every method works."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

import vitrail
from tests.zoo.small_models import (
    CASES,
    IMAGE,
    MANY,
    SMALL,
    FoldedHeads,
    HandWritten,
    build,
    inputs_of,
    open_clip_vit_b_32,
    quick,
    similar,
    timm_model,
    torchvision_vit_b_16,
)
from vitrail.capture.forward import forward_pass
from vitrail.capture.inputs import ModelInputs
from vitrail.capture.output_tensors import any_output
from vitrail.capture.structure import read_structure
from vitrail.capture.trace import ALL, TENSOR_KINDS
from vitrail.errors import MapWarning
from vitrail.methods.model_kinds import kind_of

#: Models on which all methods run several times in the fast tests: one for each kind of readout and spelling.
FAST = ("timm:vit_base", "timm:siglip", "timm:gap", "hf:vit", "own:registers")
#: Models that are built as another one is, which runs more often; what is read of them is checked in every run.
ALIKE = {
    "timm:vit_tiny": "timm:vit_base", "timm:deit_tiny": "timm:vit_base", "timm:patch-8": "timm:not-square",
    "timm:deit3_small": "timm:dinov2_reg4", "hf:vit-eager": "hf:vit", "hf:deit": "hf:vit",
    "hf:deit-teacher": "timm:deit_tiny_distilled", "hf:dinov2": "hf:dinov2-registers", "own:turned": "own:handwritten",
    "own:turned-einsum": "own:einsum",
}  # fmt: skip


@pytest.fixture(scope="module", params=CASES)
def one(request):
    """A case, its model and inputs, and the structure that is read."""
    case, model, model_inputs = build(request.param)
    return case, model, model_inputs, read_structure(model, model_inputs, None, case.target)


@pytest.fixture(scope="module")
def opened(one):
    """The output of the opened model and all tensors of its blocks."""
    _, model, model_inputs, structure = one
    with forward_pass(model, model_inputs, structure, [dict.fromkeys(TENSOR_KINDS, ALL)]) as found:
        return any_output(found.output).detach(), found.blocks


def marks(name):
    """Marks of a model on which all methods run."""
    return [pytest.mark.slow] * (name not in FAST) + [pytest.mark.exhaustive] * (name in ALIKE)


def test_models_that_run_less_often_are_like_one_that_does():
    assert set(ALIKE) | set(ALIKE.values()) <= set(CASES)
    assert not set(ALIKE) & {*FAST, *ALIKE.values()}


@pytest.fixture(scope="module", params=[pytest.param(name, marks=marks(name)) for name in CASES])
def repeated(request):
    return build(request.param)


@pytest.fixture(scope="module")
def explained(repeated):
    """The targets, every method that applies, and its maps of two inputs for several targets in one call."""
    case, model, model_inputs = repeated
    classes = list(range(min(4, any_output(model_inputs.into(model)).shape[-1])))
    target = case.target or [classes, classes[::-1]]
    methods = quick(model, model_inputs, target)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MapWarning)  # clamped maps of single classes may well be empty
        return target, methods, vitrail.explain(model, inputs_of(model_inputs), methods=methods, target=target)


def test_anatomy_is_found(one):
    case, _, _, structure = one
    assert structure.kind == "plain"
    assert structure.layout.prefix == case.prefix
    assert structure.layout.grid == case.grid
    assert structure.layout.readout == case.readout
    assert len(structure.layers) == case.layers
    assert structure.has_stream
    assert all(o.value and o.projection for o in structure.layers)
    assert any(o.scale for o in structure.layers) == case.scaled
    assert not structure.notes
    assert structure.model in str(structure)


def test_opened_model_says_the_same(one, opened):
    _, model, model_inputs, _ = one
    with torch.no_grad():
        bare = any_output(model_inputs.into(model))
    assert torch.allclose(opened[0], bare, rtol=1e-10, atol=1e-10)


def test_values_are_made_by_what_is_said_to_make_them(one):
    """V is V_in through Wv, but for a bias, which is the same for every token."""
    _, model, model_inputs, structure = one
    with forward_pass(model, model_inputs, structure, [{"V": ALL, "value_path": ALL}]) as found:
        blocks = found.blocks
    for block in blocks:
        if isinstance(model, FoldedHeads):  # values that are no view of what the projection gave are not followed
            assert "Wv" not in vars(block)
            return
        made = (block.V_in @ block.Wv.T).unflatten(-1, (block.V.shape[1], -1)).transpose(1, 2)
        bias = block.V - made
        assert torch.allclose(bias, bias[:1, :, :1].expand_as(bias), atol=1e-6)
    weights = dict(model.named_parameters())
    assert all(len(weights[o.value]) % blocks[0].Wv.shape[0] == 0 for o in structure.layers if o.value in weights)
    assert len({o.value for o in structure.layers}) == len(structure.layers), "each block has its own"


def test_attention_rows_sum_to_one_and_make_the_stream(one, opened):
    """A is a distribution over keys, and A·V through the projection is what the block adds to X."""
    model = one[1]
    for block in (b for b in opened[1] if not b.pool):
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


def test_every_method_gives_maps(repeated, explained):
    case, model, model_inputs = repeated
    _, methods, found = explained
    kind = kind_of(read_structure(model, model_inputs, None, case.target))
    expected = {m for m, line in vitrail.methods().items() if line.reason_against(kind) is None}
    expected -= {m for m, line in vitrail.methods().items() if line.check_weights is not None}  # trained for one model
    many = {m for m, line in vitrail.methods().items() if line.family in MANY}
    left_out = many if case.size[-1] > SMALL else set()
    assert set(methods) == expected - left_out
    for name, explanation in found.items():
        assert torch.isfinite(explanation.grid).all(), name
        assert torch.isfinite(explanation.maps).all(), name
        if name == "centre" and case.grid == (2, 2):
            continue  # all four patches are equally far from the middle
        assert not explanation.constant.all(), name
        assert float(explanation.maps.abs().max()) == 1.0, name
        if case.grid is not None:
            assert explanation.maps.shape[2:] == model_inputs.args[0].shape[2:]
            assert explanation.grid.shape[2:] in (case.grid, model_inputs.args[0].shape[2:])


@pytest.mark.filterwarnings("ignore::vitrail.errors.MapWarning")
def test_maps_are_those_of_one_image_and_one_target_alone(repeated, explained):
    """A batch with several targets equals single calls; texts stay together, because padding enters the attention."""
    case, model, model_inputs = repeated
    target, methods, together = explained
    for i in range(2):
        inputs = inputs_of(model_inputs) if case.grid is None else model_inputs.args[0][i : i + 1]
        rows = slice(None) if case.grid is None else slice(i, i + 1)
        columns = slice(None) if case.target else slice(i, i + 1)
        alone = vitrail.explain(model, inputs, methods=methods, target=case.target or [t[i] for t in target[rows]])
        for name in methods:
            expected = together[name].grid[rows, columns]
            scale = float(expected.abs().max())
            assert torch.allclose(alone[name].grid, expected, rtol=1e-9, atol=1e-9 * scale), name


#: Pixels of the images of the following models.
PIXELS = {"img_size": 64}
#: Models of timm by their kind, with options that make them small.
OTHERS = {
    "pvt_v2_b0": ("pyramid", {"depths": (1, 1, 1, 1)}),
    "pit_ti_224": ("pyramid", PIXELS | {"depth": (1, 1, 1)}),
    "levit_128s": ("pyramid", PIXELS | {"depth": (1, 1, 1)}),
    "mvitv2_tiny": ("pyramid", PIXELS),
    "convit_tiny": ("mixed", PIXELS | {"depth": 3, "local_up_to_layer": 2}),
    "cait_xxs24_224": ("class-attention", PIXELS | {"depth": 2}),
    "nest_tiny": ("windowed", PIXELS),
    "swin_tiny_patch4_window7_224": (
        "windowed",
        PIXELS | {"depths": (2, 2), "embed_dim": 24, "num_heads": (2, 2), "window_size": 4},
    ),
    "twins_pcpvt_small": ("pyramid", PIXELS | {"depths": (1, 1, 1, 1)}),
}
#: Too large for the fast tests.
LARGE = ("mvitv2_tiny", "nest_tiny", "twins_pcpvt_small")


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if n in LARGE else n for n in OTHERS])
def test_models_without_one_chain_of_global_attention_are_told_apart(name):
    import timm

    kind, options = OTHERS[name]
    model = timm.create_model(name, num_classes=4, **options).eval()
    images = torch.randn(1, 3, PIXELS["img_size"], PIXELS["img_size"])
    assert read_structure(model, ModelInputs((images,))).kind == kind
    with pytest.raises(vitrail.errors.NotApplicableError, match="does not apply"):
        vitrail.explain(model, images, "rollout")


@pytest.mark.parametrize("block", ["ParallelScalingBlock", "ParallelThingsBlock"])
def test_parallel_attention_is_not_mistaken_for_a_chain(block):
    """One attention beside an MLP is a chain whose sums are taken apart; several attentions side by side are none."""
    from timm.models import vision_transformer

    model = vision_transformer.VisionTransformer(
        img_size=32, patch_size=8, embed_dim=32, depth=3, num_heads=2, num_classes=4,
        block_fn=getattr(vision_transformer, block),
    ).eval()  # fmt: skip
    images = torch.randn(1, 3, 32, 32)
    if block == "ParallelThingsBlock":
        with pytest.raises(vitrail.errors.NotApplicableError):
            vitrail.explain(model, images, "vtranm")
        return
    given = ModelInputs((images,))
    with forward_pass(model, given, read_structure(model, given), [{"stream": ALL, "branch": ALL}]) as one:
        first, second = one.blocks[:2]
    assert torch.allclose(first.X + first.branch + first.F, second.X, atol=1e-5)
    vitrail.explain(model, images, "vtranm")


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
    assert first.structure["attention"] == "plain, 2 layers"


@pytest.mark.slow
@pytest.mark.parametrize("make", [
    pytest.param(timm_model("vit_base_patch16_224", depth=2), id="vit"),
    *(pytest.param(make, id=name, marks=pytest.mark.exhaustive) for name, make in {
        "open_clip": open_clip_vit_b_32,
        "torchvision": torchvision_vit_b_16,
        "beit": timm_model("beit_base_patch16_224", depth=2),
        "siglip": timm_model("vit_base_patch16_siglip_224", num_classes=10, depth=2),
        "dinov2": timm_model("vit_small_patch14_reg4_dinov2", img_size=224, num_classes=10, depth=2),
    }.items()),
])  # fmt: skip
def test_published_widths_say_the_same(make):
    """Published widths and numbers of tokens, in double precision: opened and bare models agree, and maps come out."""
    model = make().double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if float(parameter.abs().max()) < 0.05:
                parameter.add_(0.05 * torch.randn_like(parameter))
    model_inputs = ModelInputs((torch.randn(1, *IMAGE, dtype=torch.float64),))
    target = similar if make is open_clip_vit_b_32 else None
    with torch.no_grad():
        bare = any_output(model_inputs.into(model))
    with forward_pass(
        model, model_inputs, read_structure(model, model_inputs, None, target), [{"A": ALL, "dA": ALL, "stream": ALL}]
    ) as opened:
        assert torch.allclose(any_output(opened.output), bare, rtol=1e-10, atol=1e-10)
    found = vitrail.explain(model, model_inputs.args[0], "transformer_mm", target=target or 3)
    assert not found.constant.any()


@pytest.mark.parametrize("einsum", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.filterwarnings("ignore::vitrail.errors.MapWarning")
def test_values_before_attention_are_the_same_attention(einsum):
    _, plain, model_inputs = build("own:handwritten")
    turned = HandWritten(einsum, turned=True).double().eval()
    turned.load_state_dict(plain.state_dict())
    images = model_inputs.args[0]
    with torch.no_grad():
        assert torch.allclose(turned(images)["logits"], plain(images)["logits"], rtol=1e-10)
    chosen = quick(plain, model_inputs)
    expected, found = (vitrail.explain(model, images, methods=chosen, target=1) for model in (plain, turned))
    for method, own in expected.items():
        assert torch.allclose(found[method].grid, own.grid, rtol=1e-6, atol=1e-9), method
