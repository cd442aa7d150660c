"""What is known of a model is confirmed by each call: targets, order of the patches of each image, structure."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
from torch import Tensor, nn

import vitrail
from tests.capture.own_vit import OwnViT
from vitrail.capture import structure as structures
from vitrail.capture.inputs import ModelInputs
from vitrail.errors import ModelError
from vitrail.models.checkpoint import WeightsHash

IMAGES = torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(1))
METHODS = ["rollout", "raw_attention", "transformer_mm", "leadlight", "gradtoken", "grad_rollout"]


class Dense(OwnViT):
    """Returns scores for each token."""

    def read(self, x: Tensor) -> Tensor:
        return x


def grids(model: nn.Module, target, images: Tensor = IMAGES, methods=METHODS) -> dict[str, Tensor]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {n: e.grid for n, e in vitrail.explain(model, images, methods=methods, target=target).items()}


def assert_same(one: dict[str, Tensor], two: dict[str, Tensor]) -> None:
    for name, found in one.items():
        assert torch.allclose(found, two[name], atol=1e-5 * float(two[name].abs().max())), name


class Cell:
    """A target that is changed in place, and a bound method of it."""

    def __init__(self, token: int) -> None:
        self.token = token

    def __call__(self, output: Tensor) -> Tensor:
        return output[:, self.token, 1]

    def method(self, output: Tensor) -> Tensor:
        return output[:, self.token, 1]


def _spellings(token: int):
    state, held, cell = {"token": token}, torch.tensor([token]), Cell(token)
    return {
        "closure": lambda o: o[:, token, 1],
        "default": lambda o, t=token: o[:, t, 1],
        "keyword-only": lambda o, *, t=token: o[:, t, 1],
        "dict": lambda o: o[:, state["token"], 1],
        "tensor": lambda o: o[:, int(held), 1],
        "callable": cell,
        "bound method": cell.method,
    }


def test_a_target_function_is_never_taken_for_another():
    model = Dense().eval()
    expected = {token: grids(copy.deepcopy(model), _spellings(token)["closure"]) for token in (2, 9)}
    assert not torch.allclose(expected[2]["rollout"], expected[9]["rollout"], atol=1e-3)
    for spelling in _spellings(0):
        for token in (2, 9):
            assert_same(grids(model, _spellings(token)[spelling]), expected[token])
    cell = Cell(2)
    assert_same(grids(model, cell), expected[2])
    cell.token = 9
    assert_same(grids(model, cell), expected[9])


def test_a_target_function_sees_the_whole_batch():
    model, labels, sizes = OwnViT().eval(), torch.tensor([[1], [0], [2]]), set()

    def target(output: Tensor) -> Tensor:
        sizes.add(len(output))
        return output.gather(1, labels)[:, 0]

    methods = ["rollout", "raw_attention", "gradtoken"]  # these explain the logit
    assert_same(grids(model, target, methods=methods), grids(copy.deepcopy(model), [1, 0, 2], methods=methods))
    assert sizes == {3}


class Sorted(OwnViT):
    """Sorts its patches by the mean of their embedding, another order for each image."""

    def encode(self, x: Tensor) -> Tensor:
        order = x[:, 1:].mean(-1).argsort(1)[..., None].expand(-1, -1, x.shape[-1])
        return super().encode(torch.cat([x[:, :1], x[:, 1:].gather(1, order)], 1))


def test_each_image_has_its_own_order_of_patches():
    plain, ordered = OwnViT().eval(), Sorted().eval()
    ordered.load_state_dict(plain.state_dict())
    methods = ["rollout", "raw_attention", "transformer_mm"]
    # Attention does not depend on the order of the tokens, so the maps are those of the model that does not sort.
    assert_same(grids(ordered, 1, methods=methods), grids(plain, 1, methods=methods))
    given = [structures.read_structure(one, ModelInputs((IMAGES,))) for one in (ordered, plain)]
    assert [one.order_by_image for one in given] == [True, False]


class Shuffled(OwnViT):
    """Another random order in every pass."""

    def encode(self, x: Tensor) -> Tensor:
        return super().encode(torch.cat([x[:, :1], x[:, 1:][:, torch.randperm(x.shape[1] - 1)]], 1))


def test_an_order_that_changes_from_pass_to_pass_is_refused():
    with pytest.raises(ModelError, match="the order of the patches differed"):
        vitrail.explain(Shuffled().eval(), IMAGES[:1], "rollout", target=1)


def test_an_unchanged_model_is_measured_once(monkeypatch):
    model, measured = OwnViT().eval(), []
    measure = structures._measure
    monkeypatch.setattr(structures, "_measure", lambda *a: measured.append(1) or measure(*a))
    for target in (1, 2, None):
        for methods in (["rollout"], METHODS):
            grids(model, target, methods=methods)
    assert len(measured) == 1


def test_weights_hash_sees_writes_through_data():
    model = nn.Linear(8, 8)
    before = WeightsHash(model)
    first = before.hexdigest()
    later = WeightsHash(model)
    model.weight.data.mul_(2)
    assert later.hexdigest() is None
    assert WeightsHash(model).hexdigest() not in (None, first)


@pytest.mark.parametrize("layout", [None, vitrail.Layout(prefix=1)])
def test_a_changed_model_is_measured_again_once(monkeypatch, layout):
    """The new structure takes the place of the old one, so that later calls rely on it."""
    model, measured = OwnViT().eval(), []
    measure = structures._measure
    monkeypatch.setattr(structures, "_measure", lambda *given: measured.append(1) or measure(*given))
    vitrail.explain(model, IMAGES, "transformer_mm", target=0, layout=layout)
    before = len(measured)
    read = model.read
    model.read = lambda x: read(x.flip(1))  # other functions, and another token is read
    counts = []
    for _ in range(3):
        vitrail.explain(model, IMAGES, "transformer_mm", target=0, layout=layout)
        counts.append(len(measured) - before)
    assert counts == [1, 1, 1]
