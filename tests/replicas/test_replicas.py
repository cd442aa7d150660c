"""Each method against its slow replica, in float64, on every kind of plain ViT."""

from __future__ import annotations

from functools import cache, reduce

import pytest
import torch
from timm.models.deit import VisionTransformerDistilled
from timm.models.vision_transformer import VisionTransformer

import vitrail
from tests.replicas import gradcam, gradient_lrp, gradtoken, raw_attention, rollout, transformer_mm, vit, vtranm
from tests.replicas.cases_a import CASES_A
from tests.replicas.cases_b import CASES_B, LEADLIGHT

SIZE = {"patch_size": 8, "embed_dim": 48, "depth": 4, "num_heads": 3, "num_classes": 7}


def make(kind: str) -> torch.nn.Module:
    torch.manual_seed(3)
    model = {
        "cls": lambda: VisionTransformer(img_size=32, **SIZE),
        "wide": lambda: VisionTransformer(img_size=(32, 48), **SIZE),
        "distilled": lambda: VisionTransformerDistilled(img_size=32, **SIZE),
        "registers": lambda: VisionTransformer(img_size=32, reg_tokens=4, init_values=0.3, **SIZE),
        "mean": lambda: VisionTransformer(img_size=32, class_token=False, global_pool="avg", **SIZE),
    }[kind]()
    for parameter in model.parameters():  # larger than at birth, so that no softmax is flat and no map trivial
        parameter.data = parameter.data + 0.15 * torch.randn_like(parameter)
    return model.double().eval()


KINDS = ("cls", "mean", "wide", "distilled", "registers")
CASES = {
    "raw_attention": lambda p, c: raw_attention.replica(p),
    "rollout": lambda p, c: rollout.replica(p),
    "rollout:start=1,normalise=false": lambda p, c: rollout.replica(p, start=1, normalise=False),
    "rollout:per_head": lambda p, c: rollout.per_head(p),
    "rollout:vit_explain": lambda p, c: rollout.vit_explain(p),
    "rollout:vit_explain,fusion=max,discard=0.5": lambda p, c: rollout.vit_explain(p, discard=0.5, fusion="max"),
    "gradcam": lambda p, c: gradcam.replica(p, c, score="logit"),
    "gradcam:bert": lambda p, c: gradcam.replica(p, c, weights="matrix", score="logit"),
    "gradcam:block=1": lambda p, c: gradcam.replica(p, c, score="logit", blocks=(1,)),
    "gradcam:block=-1+2": lambda p, c: gradcam.replica(p, c, score="logit", blocks=(-1, 2)),
    "gradcam:eigen=true": lambda p, c: gradcam.replica(p, c, score="logit", eigen=True),
    "transformer_mm": lambda p, c: transformer_mm.replica(p, c, score="logit"),
    "transformer_mm:start=2,score=prob": lambda p, c: transformer_mm.replica(p, c, start=2, score="prob"),
    "vtranm": vtranm.replica,
    "vtranm:score=logit": lambda p, c: vtranm.replica(p, c, score="logit"),
    "vtranm:score=logprob": lambda p, c: vtranm.replica(p, c, score="logprob"),
    "vtranm:baseline": lambda p, c: vtranm.replica(p, c, variant="baseline"),
    "vtranm:baseline,layer=-1": lambda p, c: vtranm.replica(p, c, variant="baseline", layer=-1),
    "vtranm:af": lambda p, c: vtranm.replica(p, c, variant="af"),
    "vtranm:af+l": lambda p, c: vtranm.replica(p, c, variant="af+l"),
    "vtranm:af+l,init=identity": lambda p, c: vtranm.replica(p, c, variant="af+l", init="identity"),
    "vtranm:embedding=norm": lambda p, c: vtranm.replica(p, c, embedding="norm"),
    "vtranm:value_input=raw": lambda p, c: vtranm.replica(p, c, value_input="raw"),
    "vtranm:value_bias=false": lambda p, c: vtranm.replica(p, c, value_bias=False),
    "vtranm:value_input=raw,value_bias=false": lambda p, c: vtranm.replica(p, c, value_input="raw", value_bias=False),
    "vtranm:per_head=false": lambda p, c: vtranm.replica(p, c, per_head=False),
    "vtranm:projection_bias=true": lambda p, c: vtranm.replica(p, c, projection_bias=True),
    "vtranm:projection_bias=true,per_head=false": lambda p, c: vtranm.replica(
        p, c, projection_bias=True, per_head=False
    ),
    "vtranm:layer_scale=false": lambda p, c: vtranm.replica(p, c, layer_scale=False, mlp_layer_scale=False),
    "vtranm:necc_over=patches": lambda p, c: vtranm.replica(p, c, necc_over="patches"),
    **{f"gradtoken:{v}": lambda p, c, v=v: gradtoken.replica(p, c, variant=v) for v in range(5)},
    "gradtoken": gradtoken.replica,
    "gradtoken:i": lambda p, c: gradtoken.replica(p, c, heads="mean"),
    **{f"gradtoken:{v},depth=3": lambda p, c, v=v: gradtoken.replica(p, c, variant=v, depth=3) for v in range(1, 5)},
    "gradtoken:cosine": lambda p, c: gradtoken.replica(p, c, similarity="cosine"),
    "gradtoken:depth=4": lambda p, c: gradtoken.replica(p, c, depth=4),
    "gradtoken:softmax=elementwise": lambda p, c: gradtoken.replica(p, c, softmax="elementwise"),
    "gradtoken:0,heads=mean,softmax=elementwise": lambda p, c: gradtoken.replica(
        p, c, variant=0, heads="mean", softmax="elementwise"
    ),
    **CASES_A,
    **CASES_B,
    **LEADLIGHT,
}


def perturbs(case: str) -> bool:
    return vitrail.methods()[case.partition(":")[0]].family == "perturbation"


def batch_size(case: str) -> int:
    """The batch that is compared for every model: 3, or 1 where a replica evaluates many images one by one."""
    return 1 if perturbs(case) else 3


#: The other batch is compared for the first model only: a batch equals its images for every method and model, see
#: tests/battery/test_models.py.
RUNS = [(kind, case, batch_size(case)) for kind in KINDS for case in CASES]
RUNS += [(KINDS[0], case, 4 - batch_size(case)) for case in CASES]


def marks(kind: str, case: str, size: int) -> list[pytest.MarkDecorator]:
    """None for the first model and its batch; options of a method on other models and batches are the widest sweep.

    The options run on the first model in every run, and the method without options on every model and batch in the
    slow tests.
    """
    if kind == KINDS[0] and size == batch_size(case):
        return []
    return [pytest.mark.slow, pytest.mark.exhaustive] if ":" in case else [pytest.mark.slow]


PARAMETERS = [pytest.param(*run, marks=marks(*run)) for run in RUNS]


@cache
def setting(kind: str):
    """From a case and a batch size: our relevance together with the slow pass and the classes."""
    model = make(kind)
    generator = torch.Generator().manual_seed(1)
    images = torch.randn(3, 3, *model.patch_embed.img_size, dtype=torch.float64, generator=generator)
    targets = [1, 4, 2]
    slow = cache(lambda size: vit.run(model, images[:size]))

    @cache
    def found(perturbing: bool, has_options: bool, size: int):
        methods = [case for case in CASES if (perturbs(case), ":" in case) == (perturbing, has_options)]
        return vitrail.explain(model, images[:size], methods=methods, target=targets[:size])

    def setting_of(case: str, size: int):
        return found(perturbs(case), ":" in case, size)[case], slow(size), torch.tensor(targets[:size])

    return setting_of


@pytest.mark.parametrize(("kind", "case", "size"), PARAMETERS)
@pytest.mark.filterwarnings("ignore::vitrail.errors.MapWarning")
def test_agrees_with_replica(kind, case, size):
    found, slow, classes = setting(kind)(case, size)
    expected = CASES[case](slow, classes)
    ours = found.grid.flatten(2)[:, 0]
    expected = expected.flatten(1)  # patches, or pixels
    scale = expected.abs().max()
    assert torch.allclose(ours, expected, rtol=1e-8, atol=1e-9 * float(scale))


def test_query_gradient_is_the_papers_closed_form():
    from vitrail.capture.forward import forward_pass
    from vitrail.capture.inputs import ModelInputs
    from vitrail.capture.structure import read_structure
    from vitrail.capture.trace import ALL

    model = make("cls")
    images = torch.randn(2, 3, 32, 32, dtype=torch.float64)
    model_inputs = ModelInputs((images,))
    with forward_pass(model, model_inputs, read_structure(model, model_inputs), [{"dQ": ALL}]) as one:
        trace = one.trace(one.output[:, 3])
    expected = gradtoken.closed_form_query_gradient(vit.run(model, images), torch.tensor([3, 3]))
    assert torch.allclose(trace.blocks[-1].dQ, expected, rtol=1e-9, atol=1e-12)


def test_attnlrp_released_leaves_packed_attention_its_gradient():
    from torchvision.models import VisionTransformer as Torchvision

    torch.manual_seed(5)
    model = Torchvision(32, 8, 3, 4, 48, 96, num_classes=7)
    for parameter in model.parameters():
        parameter.data = parameter.data + 0.15 * torch.randn_like(parameter)
    model = model.double().eval()
    names = {
        "encoder.layers.encoder_layer_": "blocks.", "self_attention.in_proj_": "attn.qkv.", "out_proj": "proj",
        "self_attention": "attn", "ln_1": "norm1", "ln_2": "norm2", "mlp.0": "mlp.fc1", "mlp.3": "mlp.fc2",
        "encoder.ln": "norm", "encoder.pos_embedding": "pos_embed", "class_token": "cls_token", "heads.head": "head",
        "conv_proj": "patch_embed.proj",
    }  # fmt: skip
    renamed = {name: reduce(lambda text, pair: text.replace(*pair), names.items(), name) for name in model.state_dict()}
    twin = VisionTransformer(img_size=32, patch_size=8, embed_dim=48, depth=3, num_heads=4, mlp_ratio=2, num_classes=7)
    twin.double().eval().load_state_dict({renamed[name]: value for name, value in model.state_dict().items()})
    images = torch.randn(2, 3, 32, 32, dtype=torch.float64)
    ours = vitrail.explain(model, images, "attnlrp:released", target=[1, 4]).grid[:, 0]
    slow = vit.run(twin, images)
    for packed in (True, False):
        expected = gradient_lrp.attnlrp_released(slow, torch.tensor([1, 4]), packed=packed)
        assert torch.allclose(ours, expected, rtol=1e-8, atol=1e-9 * float(expected.abs().max())) is packed


def test_vtranm_af_is_transformer_mm():
    model = make("registers")
    images = torch.randn(2, 3, 32, 32, dtype=torch.float64)
    found = vitrail.explain(model, images, methods=["vtranm:af,score=logit", "transformer_mm"], target=1)
    a, b = (e.grid for e in found.values())
    assert torch.equal(a, b)
