"""Relevance through unmodified models: what is conserved, per sample, and on every kind of model."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import vitrail
from tests.zoo import small_models as zoo
from vitrail.capture.inputs import ModelInputs
from vitrail.capture.structure import read_structure
from vitrail.errors import NotApplicableError
from vitrail.lrp.ops import Linear, Product, Samples, Sum
from vitrail.lrp.propagate import Relevances, propagation
from vitrail.lrp.rule_sets import ABSLRP, GAMMA_RULES, ORIG, OURS, RuleSet, attnlrp, conservative, stable
from vitrail.lrp.rules import attention_halved, gamma_generalised, gradient_halved, linear_joint, linear_split
from vitrail.models.plain_vit import PlainViT

EVERYTHING = frozenset({"A", "tokens", "pixels", "totals"})
VARIANTS = {"released": attnlrp(attention="fixed"), "plain": attnlrp(form="plain")}
RULES = {r.name: r for r in (OURS, ORIG, ABSLRP, conservative("identity"), attnlrp())} | VARIANTS


def one_hot(scores: torch.Tensor) -> torch.Tensor:
    return F.one_hot(torch.ones(len(scores), dtype=torch.long), scores.shape[1]).to(scores)


def embeds(output):
    return output[0] if isinstance(output, tuple) else output.image_embeds


def timm_small(**options):
    from timm.models.vision_transformer import VisionTransformer

    return VisionTransformer(img_size=32, patch_size=8, embed_dim=32, depth=3, num_heads=4, num_classes=5, **options)


def distilled():
    from timm.models.deit import VisionTransformerDistilled

    return VisionTransformerDistilled(32, 8, embed_dim=32, depth=3, num_heads=4, num_classes=5)


class Thrifty(PlainViT):
    """Sums, scales and activations in place, as thrifty code does."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = self.embed(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.prefix.expand(x.shape[0], -1, -1), x], 1)
        x += self.position
        for block in self.blocks:
            q, k, v = block.qkv(block.norm1(x)).unflatten(-1, (3, block.heads, -1)).permute(2, 0, 3, 1, 4)
            z = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
            branch = block.proj(z).mul_(1.0)
            branch += x
            x = block.mlp(block.norm2(branch)).add_(branch)
        return self.head(self.norm(x)[:, 0])


MAKERS = {
    "plain": PlainViT,
    "plain mean": lambda: PlainViT(prefix=0, pool=True),
    "thrifty": Thrifty,
    "timm": timm_small,
    "timm registers, LayerScale, q/k norms": lambda: timm_small(reg_tokens=4, init_values=0.3, qk_norm=True),
    "timm pool": lambda: timm_small(class_token=False, global_pool="map"),
    "timm distilled": distilled,
}
ZOO = (
    "hf:vit", "hf:vit-eager", "hf:deit-teacher", "hf:dinov2-registers", "hf:clip-vision", "hf:bert", "torchvision:vit",
    "open_clip:vit", "own:handwritten", "own:einsum", "own:turned", "own:encoder", "own:folded-heads",
)  # fmt: skip


def made(name: str):
    """A model in double precision, and a model_inputs of three inputs."""
    if name in ZOO:
        case, model, model_inputs = zoo.build(name)
        if case.grid is None:
            again = {
                k: torch.cat([v, v[:1].flip(1) if k == "input_ids" else v[:1]]) for k, v in model_inputs.kwargs.items()
            }
            return model, ModelInputs((), again)
        return model, ModelInputs((torch.randn(3, *case.size, dtype=torch.float64),))
    torch.manual_seed(4)
    model = MAKERS[name]().double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model, ModelInputs((torch.randn(3, 3, 32, 32, dtype=torch.float64),))


def run(model: nn.Module, model_inputs: ModelInputs, rules: RuleSet, want: frozenset[str] = EVERYTHING) -> Relevances:
    if model_inputs.image is None:
        want = want - {"pixels"}
    if rules.name == "conservative" or rules is VARIANTS["released"]:  # these hold attention fixed
        want = want - {"A"}
    extra = {"read": embeds} if type(model).__name__ in ("CLIP", "CLIPVisionModelWithProjection") else {}
    return propagation(model, model_inputs, read_structure(model, model_inputs), rules, **extra).relevances(
        one_hot, want
    )


def parts_of(found: Relevances) -> list[torch.Tensor]:
    return [t for t in (*found.A, found.tokens, found.pixels, *found.blocks) if t is not None]


@pytest.mark.parametrize("name", [*MAKERS, *(pytest.param(name, marks=pytest.mark.slow) for name in ZOO)])
def test_every_model(name):
    """Totals stay by the rules that say so, a batch is its inputs one by one, and the model is left as it was."""
    model, model_inputs = made(name)
    with torch.no_grad():
        before = model_inputs.into(model)
    state = {k: v.clone() for k, v in model.state_dict().items()}
    all_found = {}
    for i, rules in enumerate(RULES.values()):
        found = all_found[rules.name] = run(model, model_inputs, rules)
        assert all(torch.isfinite(t).all() for t in parts_of(found))
        assert float(found.tokens.abs().sum()) > 0
        alone = run(model, model_inputs.select(slice(i % 3, i % 3 + 1)), rules)
        for together, single in zip(parts_of(found), parts_of(alone), strict=True):
            scale = single.abs().max().clamp_min(1e-12)
            assert float((together[i % 3] - single[0]).abs().max() / scale) < 1e-9, rules.name
    ours = all_found["ours"]
    # A mean gives no share where no token is positive, nor a pool's fixed query where no product with a key is, so
    # there less than 1 may arrive; from then on totals stay.
    lossy = name in ("plain mean", "own:encoder", "hf:dinov2-registers", "timm pool")
    arrived = ours.blocks[-1] if lossy else torch.ones(3, dtype=torch.float64)
    assert ((arrived > 0.5) & (arrived < 1 + 1e-4)).all()
    for total in ours.blocks:
        assert torch.allclose(total, arrived, rtol=1e-4)
    assert torch.allclose(ours.tokens.sum(1), ours.blocks[0])
    for k, v in model.state_dict().items():
        assert torch.equal(v, state[k])
    assert all(p.requires_grad for p in model.parameters())
    with torch.no_grad():
        after = model_inputs.into(model)
    for old, new in zip(tensors_of(before), tensors_of(after), strict=True):
        assert torch.equal(old, new)


def tensors_of(output) -> list[torch.Tensor]:
    values = [output] if isinstance(output, torch.Tensor) else output.values() if hasattr(output, "values") else output
    return [v for v in values if isinstance(v, torch.Tensor)]


def test_in_place_sums_change_nothing():
    torch.manual_seed(4)
    plain = PlainViT().double().eval()
    thrifty = Thrifty().double().eval()
    thrifty.load_state_dict(plain.state_dict())
    model_inputs = ModelInputs((torch.randn(2, 3, 32, 32, dtype=torch.float64),))
    for rules in RULES.values():
        for expected, found in zip(
            parts_of(run(plain, model_inputs, rules)), parts_of(run(thrifty, model_inputs, rules)), strict=True
        ):
            assert torch.allclose(found, expected, rtol=1e-6, atol=1e-12), rules.name


def test_attention_and_values_get_half_each():
    """With the output projection alone between them, half of what the branch got arrives at attention."""
    model, model_inputs = made("plain")
    found = run(model, model_inputs, OURS)
    assert len(found.A) == 3
    assert found.A[0].shape == (3, 4, 17, 17)
    # In the last block all relevance is at the readout: what the skip connection kept and the branch got make 1.
    for A in found.A:
        assert (A.sum((1, 2, 3)).abs() <= 0.5 + 1e-9).all()
    assert float(found.A[-1][:, :, 1:].abs().max()) == 0


@pytest.mark.parametrize(("rule", "factor"), [(linear_joint, 1), (linear_split, 2)])
def test_linear_totals(rule, factor):
    x = torch.randn(3, 7, 64, dtype=torch.float64, requires_grad=True)
    W, b = torch.randn(12, 64, dtype=torch.float64), torch.randn(12, dtype=torch.float64)
    y = rule(Linear(lambda x: F.linear(x, W, b), F.linear, torch.matmul, W, b, Samples(3)), x)
    assert torch.equal(y, F.linear(x, W, b))
    R = torch.rand_like(y)
    (found,) = torch.autograd.grad(y, x, R)
    assert torch.allclose(found.sum((1, 2)), factor * R.sum((1, 2)), rtol=1e-6)


def test_conservative_sums_to_the_logit():
    """Without biases, with output over input at activations: the relevance of all tokens is the logit."""
    model, model_inputs = made("plain")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.zero_()
        logits = model_inputs.into(model)[:, 1]
    want = frozenset({"tokens"})
    assert torch.allclose(run(model, model_inputs, conservative("identity"), want).tokens.sum(1), logits, rtol=1e-6)
    assert not torch.allclose(run(model, model_inputs, conservative(), want).tokens.sum(1), logits, rtol=1e-3)


@pytest.mark.parametrize("form", GAMMA_RULES)
def test_gamma_zero_is_the_gradient(form):
    model = nn.Sequential(nn.Conv2d(3, 4, 2), nn.Flatten(), nn.Linear(36, 2)).double()
    from vitrail.lrp.mode import RelevanceMode

    x = torch.randn(2, 3, 4, 4, dtype=torch.float64, requires_grad=True)
    (expected,) = torch.autograd.grad(model(x).sum(), x)
    model.requires_grad_(False)
    for gamma, same in ((0.0, True), (0.3, False)):
        with RelevanceMode(attnlrp(gamma, gamma, form=form), Samples(2)):
            y = model(x)
        (found,) = torch.autograd.grad(y.sum(), x)
        assert torch.allclose(found, expected) is same


@pytest.mark.parametrize("gamma", [0.05, 100.0])
def test_generalised_gamma_conserves_and_does_not_grow(gamma):
    torch.manual_seed(0)
    W = torch.randn(12, 64, dtype=torch.float64)
    W[:, 1::2] = -W[:, ::2]  # equal inputs would cancel
    x = torch.randn(3, 7, 32, dtype=torch.float64).repeat_interleave(2, -1)
    x = (x + 1e-3 * torch.randn_like(x)).requires_grad_()
    y = gamma_generalised(gamma)(Linear(lambda x: F.linear(x, W), F.linear, torch.matmul, W, None, Samples(3)), x)
    G = torch.randn_like(y)
    (found,) = torch.autograd.grad(y, x, G)
    assert torch.allclose((x * found).sum(-1), (G * y).sum(-1), rtol=1e-3, atol=1e-6)
    assert float(found.detach().abs().max()) <= (1 + gamma) * float((G.abs() @ W.abs()).max())


def test_absolute_rules_bring_everything_to_one():
    model, model_inputs = made("timm")
    found = run(model, model_inputs, ABSLRP)
    for t in (found.pixels, *found.A):
        assert torch.allclose(t.flatten(1).sum(1), torch.ones(3, dtype=torch.float64))
        assert (t >= 0).all()


def test_two_heads_get_half_each():
    model, model_inputs = made("timm distilled")
    tokens = torch.zeros(3, 18, dtype=torch.float64)
    for head, token in ((model.head, 0), (model.head_dist, 1)):
        x = model.norm(model.blocks(model.norm_pre(model._pos_embed(model.patch_embed(model_inputs.image)))))[:, token]
        x, W = x.detach().requires_grad_(), head.weight.detach()
        y = linear_joint(Linear(lambda x, W=W: x @ W.T, F.linear, torch.matmul, W, None, Samples(3)), x)
        tokens[:, token] = torch.autograd.grad(y, x, one_hot(y) / 2)[0].sum(1)
    assert torch.allclose(tokens.sum(1), torch.ones(3, dtype=torch.float64))
    from vitrail.lrp.mode import RelevanceMode

    with RelevanceMode(OURS, Samples(3)):
        x = torch.randn(3, 2, 32, dtype=torch.float64, requires_grad=True)
        model.requires_grad_(False)
        y = model.forward_head(x)
    (R,) = torch.autograd.grad(y, x, one_hot(y))
    assert torch.allclose(R.sum(2), torch.full((3, 2), 0.5, dtype=torch.float64))


def test_a_batch_as_large_as_the_tokens():
    """Where tokens come first, a batch of n makes a square; the axes must not be mixed up."""
    model, _ = made("own:handwritten")
    model_inputs = ModelInputs((torch.randn(17, 3, 32, 32, dtype=torch.float64),))
    found, alone = run(model, model_inputs, OURS), run(model, model_inputs.select(slice(3, 4)), OURS)
    for together, single in zip(parts_of(found), parts_of(alone), strict=True):
        assert torch.allclose(together[3], single[0], rtol=1e-7, atol=1e-12)


def test_what_cannot_be_asked():
    model, model_inputs = made("plain")
    with pytest.raises(NotApplicableError, match="hold attention fixed"):
        propagation(model, model_inputs, read_structure(model, model_inputs), conservative()).relevances(
            one_hot, frozenset({"A"})
        )
    model, model_inputs = made("hf:bert")
    with pytest.raises(NotApplicableError, match="only images have pixels"):
        propagation(model, model_inputs, read_structure(model, model_inputs), OURS).relevances(
            one_hot, frozenset({"pixels"})
        )


def test_half_precision_is_carried_in_single():
    torch.manual_seed(4)
    model, images = PlainViT().eval(), torch.randn(2, 3, 32, 32)
    expected = run(model, ModelInputs((images,)), OURS)
    found = run(model.to(torch.bfloat16), ModelInputs((images.to(torch.bfloat16),)), OURS)
    assert found.pixels.dtype == torch.float32
    close = torch.corrcoef(torch.stack([found.tokens.flatten(), expected.tokens.flatten()]))[0, 1]
    assert close > 0.95
    assert next(model.parameters()).dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("methods", "passes"), [(["lrp", "partial_lrp"], 2), (["abslrp"], 1), (["attnlrp"], 1), (["lrp", "abslrp"], 2)]
)
def test_one_forward_serves_every_question_of_the_same_rules(methods, passes):
    """For two classes, the same maps as for each alone, one forward a rule set; partial LRP reads another."""
    torch.manual_seed(4)
    model, images = PlainViT().double().eval(), torch.randn(2, 3, 32, 32, dtype=torch.float64)
    alone = [{m: vitrail.explain(model, images, m, target=k).grid[:, 0] for m in methods} for k in (1, 3)]
    seen = []
    handle = model.register_forward_hook(lambda *_: seen.append(1))
    found = vitrail.explain(model, images, methods=methods, target=[[1, 3]])
    handle.remove()
    assert len(seen) == passes
    assert torch.allclose(found[methods[0]].logits, model(images), rtol=1e-10)
    for k, own in enumerate(alone):
        for method, grid in own.items():
            assert torch.equal(found[method].grid[:, k], grid), method


def test_a_result_that_was_written_over_is_computed_again():
    x = torch.randn(2, 5, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(4, 5, dtype=torch.float64)
    op = Linear(lambda x: F.linear(x, weight), F.linear, torch.matmul, weight, None, Samples(2))
    expected, found = (gamma_generalised(0.1)(op, x) for _ in range(2))
    start = torch.randn(2, 4, dtype=torch.float64)
    (kept,) = torch.autograd.grad(expected, x, start)
    edge = torch.autograd.graph.get_gradient_edge(found)
    with torch.no_grad():
        found.zero_()
    (again,) = torch.autograd.grad(edge, x, start)
    assert torch.equal(again, kept)
    assert float(kept.abs().sum()) > 0


@pytest.mark.parametrize("turn", [False, True])
def test_a_result_that_is_a_view_can_be_written_over(turn):
    """As some builds of torch return them."""
    from vitrail.lrp.ops import with_backward, with_backward_of_result

    def run(x):
        return (x * 2).view(6).view(2, 3).T if turn else (x * 2).view(6).view(2, 3)

    for carried in (
        lambda x: with_backward(run, lambda R: ((R.T if turn else R) * 5,), (), x),
        lambda x: with_backward_of_result(run, lambda R, *_: (R.T if turn else R) * 5, x),
    ):
        x = torch.arange(6.0).view(2, 3).requires_grad_()
        y = carried(x)
        y += 1
        assert torch.equal(y, run(x) + 1)
        (found,) = torch.autograd.grad(y.sum(), x)
        assert torch.equal(found, torch.full((2, 3), 5.0))


@pytest.mark.parametrize("rules", [OURS, ORIG])
def test_stable_rules_bound_what_cancels(rules):
    """Sums that cancel almost: relevance explodes without epsilon; with it, single precision agrees with double."""
    torch.manual_seed(0)
    u = torch.randn(2, 5, 16, dtype=torch.float64)
    v = -u + 1e-5 * torch.randn_like(u)
    R = torch.rand_like(u)

    def shares(epsilon, dtype):
        pair = [t.to(dtype).requires_grad_() for t in (u, v)]
        out = stable(rules, epsilon).rules["add"](Sum(torch.add, Samples(2)), *pair)
        return torch.cat([t.double().flatten() for t in torch.autograd.grad(out, pair, R.to(dtype))])

    exact, single = shares(0.5, torch.float64), shares(0.5, torch.float32)
    assert stable(rules, 0.0) is rules
    assert stable(rules, 0.5) is stable(rules, 0.5)
    assert torch.corrcoef(torch.stack([exact, single]))[0, 1] > 0.99
    spread = [float(t.abs().max() / t.abs().mean()) for t in (exact, shares(0.0, torch.float64))]
    assert spread[0] < spread[1]


def test_infinite_entries_do_not_count_for_the_size():
    t = torch.tensor([[3.0, -torch.inf], [0.0, 2.0]], dtype=torch.float64)
    expected = torch.tensor([3.0, 2.0**0.5], dtype=torch.float64)
    assert torch.allclose(Samples(2).root_mean_square(t).flatten(), expected)
    with pytest.raises(vitrail.errors.OptionError, match="epsilon=1"):
        vitrail.explain(PlainViT().eval(), torch.randn(1, 3, 32, 32), "lrp", epsilon=1.0)


def test_relevance_of_tokens_where_channels_come_first():
    """SqueezeBERT's stream has shape (batch, channels, tokens); padding has no relevance."""
    transformers = pytest.importorskip("transformers")
    config = transformers.SqueezeBertConfig(
        hidden_size=32, embedding_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48,
        vocab_size=50, num_labels=3, max_position_embeddings=16, **dict.fromkeys(("q_groups", "k_groups"), 2),
    )  # fmt: skip
    model = transformers.SqueezeBertForSequenceClassification(config).double().eval()
    ids = torch.randint(5, 50, (2, 9))
    mask = torch.ones_like(ids)
    mask[0, 6:] = 0
    found = run(model, ModelInputs((), {"input_ids": ids, "attention_mask": mask}), conservative(), EVERYTHING - {"A"})
    assert found.tokens.shape == ids.shape
    assert torch.allclose(found.tokens.sum(1), found.blocks[0])
    assert float(found.tokens[0, 6:].abs().max()) < 1e-6 * float(found.tokens[0, :6].abs().max())
    assert bool((found.tokens[0, :6] != 0).all())


def test_halved_attention_leaves_other_uses_of_its_inputs_alone():
    inputs = [torch.randn(1, 2, 3, 4, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    plain = torch.autograd.grad(F.scaled_dot_product_attention(*inputs).sum(), inputs)
    halved = F.scaled_dot_product_attention(*attention_halved(*inputs)).sum() + sum(t.sum() for t in inputs)
    for found, expected, factor in zip(torch.autograd.grad(halved, inputs), plain, (0.25, 0.25, 0.5), strict=True):
        assert torch.allclose(found, factor * expected + 1)


@pytest.mark.parametrize("shapes", [((3, 4), (3, 4)), ((3, 1), (1, 4)), ((2, 3, 4), (4,))])
def test_a_halved_gate_that_is_written_over_keeps_its_gradient(shapes):
    u, v = (torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes)
    R = torch.randn(torch.broadcast_shapes(*shapes), dtype=torch.float64)
    plain = torch.autograd.grad(u * v, (u, v), R)
    out = gradient_halved(Product(torch.mul, torch.mul, torch.mul, Samples(1)), u, v)
    out.add_(1)
    for found, expected in zip(torch.autograd.grad(out, (u, v), R), plain, strict=True):
        assert torch.allclose(found, expected / 2)
