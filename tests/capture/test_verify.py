"""The self-check on models whose truth is known: one function spelled otherwise gives the same maps or is refused."""

from __future__ import annotations

import copy
import threading
import warnings

import pytest
import torch
from torch import nn

import vitrail
from tests.capture.own_vit import DEPTH, ORDERS, PATCH, SIDE, SPELLINGS, UNSEEN, OwnViT, twin
from tests.combinations import combinations
from vitrail.capture.inputs import ModelInputs
from vitrail.capture.outputs import class_logits
from vitrail.capture.structure import read_structure
from vitrail.errors import GuessWarning, MapWarning, NotApplicableError, TargetError
from vitrail.testing import tiny_vit

SIZE = SIDE * PATCH
IMAGES = torch.randn(2, 3, SIZE, SIZE, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
#: One method for each way of reading a model.
METHODS = ["rollout", "transformer_mm", "gradtoken", "vtranm", "attcat", "partial_lrp", "attnlrp", "leadlight"]


def structure(model: nn.Module, images: torch.Tensor = IMAGES):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", GuessWarning)
        return read_structure(model, ModelInputs((images,)))


def maps(model: nn.Module, names: list[str] = METHODS, images: torch.Tensor = IMAGES):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", GuessWarning)
        warnings.simplefilter("ignore", MapWarning)
        found = vitrail.explain(model, images, methods=names, target=[[1, 3]])
    # GradToken's map scales with the queries, and so with where a model applies the factor 1/√dh.
    return {name: found[name].grid / found[name].grid.abs().amax((-2, -1), keepdim=True) for name in names}


@pytest.fixture(scope="module")
def reference():
    return {pool: maps(twin(pool=pool)) for pool in ("cls", "mean")}


#: Every spelling in raster order; a few in every order in the fast tests.
SPELLED = [
    pytest.param(s, o, marks=() if o == "raster" or s in ("fused", "einsum-mixed", "bmm") else pytest.mark.slow)
    for s in SPELLINGS
    for o in ("raster", "cls-last", "shuffled")
]


@pytest.mark.parametrize(("spelling", "order"), SPELLED)
def test_every_spelling_gives_the_same_maps(spelling, order, reference):
    model = twin(spelling=spelling, order=order)
    assert torch.allclose(model(IMAGES), twin()(IMAGES), atol=1e-10)
    found = structure(model)
    assert found.kind == "plain" and not found.failed, str(found)  # noqa: PT018
    for name, grid in maps(model).items():
        expected = reference["cls"][name]
        assert torch.allclose(grid, expected, rtol=1e-6, atol=1e-9 * float(expected.abs().max())), name


@pytest.mark.parametrize("pool", ["cls", "mean"])
@pytest.mark.parametrize("order", ORDERS)
def test_every_order_of_tokens_gives_the_same_maps(order, pool, reference):
    if order in ("suffix", "registers"):  # these have more tokens, so another function: their own odd patch is tested
        pytest.skip("more tokens than the reference")
    for name, grid in maps(twin(order=order, pool=pool)).items():
        expected = reference[pool][name]
        assert torch.allclose(grid, expected, rtol=1e-6, atol=1e-9 * float(expected.abs().max())), name


@pytest.mark.parametrize(
    ("order", "spelling", "rows"), combinations(list(ORDERS), ["fused", "einsum-mixed", "bmm", "exp-sum"], [2, 4])
)
def test_the_odd_patch_is_where_it_is(order, spelling, rows):
    """All patches are equal but one, positions are zero: only the odd cell of a map may differ from the others."""
    model = twin(order=order, spelling=spelling, rows=rows)
    with torch.no_grad():
        model.position.zero_()
    row, column = 1, 2
    images = torch.zeros(1, 3, rows * PATCH, SIZE, dtype=torch.float64) + 0.3
    images[..., row * PATCH : (row + 1) * PATCH, column * PATCH : (column + 1) * PATCH] = -1.0
    layout = structure(model, images).layout
    assert (layout.grid, layout.prefix, layout.suffix) == (
        (rows, SIDE), {"cls-last": 0, "registers": 3}.get(order, 1), {"cls-last": 1, "suffix": 2}.get(order, 0),
    )  # fmt: skip
    for name, grid in maps(model, ["rollout", "transformer_mm", "gradsam"], images).items():
        one = grid[0, 0]
        difference = (one - one.flatten().median()).abs()
        assert divmod(int(difference.argmax()), SIDE) == (row, column), name
        rest = difference.flatten().sort().values[:-1]
        assert float(rest.max()) < 1e-9 * float(difference.max()), name


def test_post_norm_models_add_up():
    found = structure(twin(post_norm=True))
    assert found.has_stream and not found.failed  # noqa: PT018


def test_a_size_the_patch_does_not_divide_leaves_the_border_uncovered():
    model = twin()
    odd = torch.zeros(1, 3, SIZE + 5, SIZE + 3, dtype=torch.float64)
    odd[..., :SIZE, :SIZE] = IMAGES[:1]
    plain = vitrail.explain(model, IMAGES[:1], "transformer_mm", target=1).maps
    found = vitrail.explain(model, odd, "transformer_mm", target=1).maps
    assert torch.allclose(found[..., :SIZE, :SIZE], plain, atol=1e-6)
    assert not found[..., SIZE:, :].any() and not found[..., SIZE:].any()  # noqa: PT018


# -- mutations: each assumption is broken on purpose, and the check must catch it by name ----------------------------


@pytest.mark.parametrize("unseen", UNSEEN)
@pytest.mark.parametrize("where", range(DEPTH))
def test_one_block_with_attention_unseen_is_caught(unseen, where):
    spelling = tuple(unseen if i == where else "fused" for i in range(DEPTH))
    model = twin(spelling=spelling)
    found = structure(model)
    assert found.kind in ("unseen", "mixed")
    with pytest.raises(NotApplicableError):
        maps(model, ["rollout"])
    if found.kind == "unseen":
        check = next(c for c in found.failed if c.name == "no other mixing of tokens")
        assert "3 blocks mix tokens, attention was seen in 2" in check.detail


class HiddenProjection(OwnViT):
    """The output projection is followed by a norm, so that Wo is not what is added to the stream."""

    def attend(self, index, x):
        return nn.functional.layer_norm(super().attend(index, x), (x.shape[-1],))


class ScaledStream(OwnViT):
    """The stream is scaled between two blocks."""

    def encode(self, x):
        for i, block in enumerate(self.blocks):
            x = x + self.attend(i, block["norm1"](x))
            x = x + block["down"](nn.functional.gelu(block["up"](block["norm2"](x))))
            x = 0.5 * x if i == 0 else x
        return self.norm(x)


class Drifting(OwnViT):
    """The model says something else each time it is called."""

    def forward(self, images):
        self.calls = getattr(self, "calls", 0) + 1
        return super().forward(images) * self.calls


@pytest.mark.parametrize(
    ("mutation", "name"),
    [
        (HiddenProjection, "output projections"),
        (ScaledStream, "the residual stream adds up"),
        (Drifting, "outputs under capture"),
    ],
)
def test_a_broken_assumption_is_caught_by_name(mutation, name):
    found = structure(mutation().double().eval())
    assert name in [check.name for check in found.failed], str(found)
    assert not structure(twin()).failed


def test_methods_that_need_the_stream_refuse_a_model_whose_stream_does_not_add_up():
    model = ScaledStream().double().eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(NotApplicableError, match="block 1"):
            vitrail.explain(model, IMAGES, "vtranm")
        vitrail.explain(model, IMAGES, "transformer_mm")


def test_a_wrong_layout_from_the_user_is_warned_about():
    with pytest.warns(GuessWarning, match='the check ".*" failed: .*otherwise than measured'):
        vitrail.explain(twin(order="cls-last"), IMAGES, "rollout", layout=vitrail.Layout(prefix=1, grid=(4, 4)))


# -- what surrounds an encoder ----------------------------------------------------------------------------------------


class Ensemble(nn.Module):
    def __init__(self, flip: bool = False):
        super().__init__()
        self.one = OwnViT().double()
        self.two = self.one if flip else OwnViT(seed=8).double()
        self.flip = flip

    def forward(self, images):
        return (self.one(images) + self.two(images.flip(-1) if self.flip else images)) / 2


@pytest.mark.parametrize("flip", [False, True])
def test_parallel_encoders_are_not_chained(flip):
    model = Ensemble(flip).eval()
    assert structure(model).kind == "parallel"
    with pytest.raises(NotApplicableError, match="side by side"):
        vitrail.explain(model, IMAGES, "rollout")
    assert vitrail.explain(model, IMAGES, "gradient_x_input", target=1).grid.any()


class Beside(OwnViT):
    """An attention pool that the logits ignore, and a teacher that no gradient reaches."""

    def __init__(self):
        super().__init__()
        self.query = nn.Parameter(torch.randn(1, 1, 32))
        self.teacher = OwnViT(seed=9)

    def forward(self, images):
        x = self.encode(self.tokens(images))
        self.pooled = nn.functional.scaled_dot_product_attention(self.query.expand(len(x), -1, -1), x, x)
        with torch.no_grad():
            self.teacher(images)
        return self.head(self.read(x))


def test_attention_beside_the_path_is_left_out():
    torch.manual_seed(0)
    model = Beside().double().eval()
    before = maps(model)
    assert len(structure(model).layers) == DEPTH
    with torch.no_grad():
        model.query.normal_()
    for name, grid in maps(model).items():
        assert torch.equal(grid, before[name]), name


class Softmaxed(OwnViT):
    def forward(self, images):
        return super().forward(images).softmax(-1)


def test_probabilities_are_not_passed_through_softmax_again():
    model = Softmaxed().double().eval()
    with pytest.warns(GuessWarning, match="probabilities already"):
        found = vitrail.explain(model, IMAGES, "transformer_mm", target=1)
    assert torch.allclose(found.probabilities[:, 0].double(), model(IMAGES)[:, 1], atol=1e-6)


def test_probabilities_are_recognised_before_the_self_check():
    model = Softmaxed().double().eval()
    output = model(IMAGES)
    for wrapped in (model, nn.DataParallel(model)):
        logits = class_logits(wrapped, output)
        assert torch.allclose(logits.softmax(1), output)
    plain = twin()
    assert class_logits(plain, plain(IMAGES)).equal(plain(IMAGES))


class Headless(OwnViT):
    def forward(self, images):
        return self.read(self.encode(self.tokens(images)))


def test_features_are_not_taken_for_classes():
    model = Headless().double().eval()
    with pytest.raises(TargetError, match="returns features, not class scores"):
        vitrail.explain(model, IMAGES, "rollout")
    assert vitrail.explain(model, IMAGES, "rollout", target=lambda out: out[:, 0]).grid.any()


def test_a_head_that_is_trained_later_is_read_again():
    model = twin(pool="mean")
    trained = copy.deepcopy(model.head.state_dict())
    with torch.no_grad():
        model.head.weight.zero_()
    with pytest.warns(GuessWarning, match="is a guess"):
        vitrail.explain(model, IMAGES, "rollout", target=1)
    model.head.load_state_dict(trained)
    assert structure(model).layout.readout == "mean"


class Adapted(nn.Module):
    """A linear layer with an unmerged low-rank adapter."""

    def __init__(self, base: nn.Linear):
        super().__init__()
        self.base = base
        self.down, self.up = nn.Linear(base.in_features, 2, bias=False), nn.Linear(2, base.out_features, bias=False)

    def forward(self, x):
        return self.base(x) + 1.5 * self.up(self.down(x))


@pytest.mark.parametrize("layer", ["proj", "qkv", "up"])
def test_an_unmerged_adapter_gives_the_maps_of_merged_weights(layer):
    torch.manual_seed(4)
    adapted, merged = twin(), twin()
    for one, two in zip(adapted.blocks, merged.blocks, strict=True):
        one[layer] = Adapted(one[layer]).double()
        with torch.no_grad():
            two[layer].weight += 1.5 * one[layer].up.weight @ one[layer].down.weight
    names = [*METHODS, "transformer_attribution", "lrp", "conservative_lrp"]
    expected = maps(merged, names)
    for name, grid in maps(adapted, names).items():
        assert torch.allclose(grid, expected[name], rtol=1e-5, atol=1e-8 * float(expected[name].abs().max())), name
    assert not any("forward" in vars(m) for m in adapted.modules())


def test_threads_share_a_model():
    model = twin()
    expected = {k: vitrail.explain(model, IMAGES, "transformer_mm", target=k).grid for k in range(5)}
    equal: list[bool] = []

    def work(start: int) -> None:
        for k in (start, (start + 1) % 5, (start + 3) % 5):
            found = vitrail.explain(model, IMAGES, "transformer_mm", target=k).grid
            equal.append(torch.allclose(found, expected[k]))

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(equal) == 12 and all(equal)  # noqa: PT018
    assert all(p.requires_grad for p in model.parameters())


def test_target_functions_do_not_measure_the_structure_again():
    model, calls = twin(), []
    model.register_forward_hook(lambda *_: calls.append(1))
    text = torch.randn(2, 5, dtype=torch.float64)
    for _ in range(3):
        vitrail.explain(model, IMAGES, "transformer_mm", target=lambda out: out[:, 1])
        vitrail.explain(model, IMAGES, "transformer_mm", target=vitrail.similarity(text))
    assert len(calls) == 5 + 6, "one structure in five passes, six passes"


@pytest.mark.parametrize("block", [0, 1, 2])
def test_an_attention_layer_without_influence_is_one_with_next_to_none(block):
    """Zero weights after it, as in a pruned layer or a branch that starts at zero."""
    torch.manual_seed(0)
    methods = ["leadlight", "rollout", "transformer_mm", "vtranm", "attnlrp", "gradient_x_input"]
    model, images = tiny_vit().double(), torch.randn(2, 3, 32, 32, dtype=torch.float64)
    found = []
    for factor in (1e-7, 0):
        changed = copy.deepcopy(model)
        for parameter in changed.blocks[block].proj.parameters():
            parameter.data.mul_(factor)
        found.append(vitrail.explain(changed, images, methods=methods, target=1))
    for name in methods:
        small, zero = (one[name].grid / found[0][name].grid.abs().max() for one in found)
        assert torch.allclose(zero, small, rtol=0, atol=1e-5), name
