"""Targets: classes as numbers of every kind and as names; what is no class is refused."""

import numpy as np
import pytest
import torch

import vitrail
from vitrail.errors import TargetError
from vitrail.inputs.targets import class_index, class_scores
from vitrail.models import imagenet_classes
from vitrail.testing import tiny_vit

pytestmark = pytest.mark.filterwarnings("ignore::vitrail.errors.MapWarning")
IMAGES = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))


def explain(inputs, **options):
    return vitrail.explain(tiny_vit(), inputs, "rollout", **options)


@pytest.mark.parametrize(("target", "expected"), [
    (np.array([1, 2]), [[1], [2]]),
    (np.int64(3), [[3], [3]]),
    (np.array(3), [[3], [3]]),
    (np.array([[0, 4]], np.uint8), [[0, 4], [0, 4]]),
    ([np.int32(1), 2], [[1], [2]]),
    (torch.tensor([[1, 2], [3, 4]]), [[1, 2], [3, 4]]),
])  # fmt: skip
def test_numpy_and_torch_targets(target, expected):
    assert explain(IMAGES, target=target).targets.tolist() == expected


@pytest.mark.parametrize("target", [True, np.True_, [True, False], np.array([True, False]), 1.5, float("inf")])
def test_values_that_are_no_class_raise(target):
    with pytest.raises(TargetError):
        explain(IMAGES, target=target)


def test_imagenet_names_with_several_matches():
    names = imagenet_classes()
    assert names is not None
    by_case = class_index("Cardigan", names), class_index("cardigan", names)
    assert [names[i].split(",")[0] for i in by_case] == ["Cardigan", "cardigan"]
    with pytest.raises(TargetError, match=r"several classes are called 'crane': 134 crane, 517 crane; give an index"):
        class_index("crane", names)


@pytest.mark.parametrize("score", ["prob", "logprob"])
@pytest.mark.parametrize("margin", [1.0, 12.0, 17.0, 24.0])
def test_gradient_of_the_probability_of_a_confident_class(margin, score):
    """In single precision the probability rounds to one, its derivative by the logit of the class must not to zero."""
    logits = torch.tensor([[margin, 0.5, -torch.inf, 0.0]], requires_grad=True)
    (found,) = torch.autograd.grad(class_scores(logits, score)[0, 0], logits)
    wide = logits.detach().double().requires_grad_()
    (expected,) = torch.autograd.grad(torch.sigmoid(wide[0, 0] - wide[0, 1:].logsumexp(0)), wide)
    probability = 1.0 if score == "prob" else float(wide.detach().softmax(-1)[0, 0])
    torch.testing.assert_close(found, (expected / probability).float(), rtol=1e-5, atol=0)


def test_maps_of_a_confident_class_do_not_depend_on_the_precision():
    model = tiny_vit()
    with torch.no_grad():
        model.head.bias[2] += 18
    found = vitrail.explain(model, IMAGES, "vtranm", target=2)
    assert (1 - found.logits.double().softmax(-1)[:, 2] < 1e-6).all()
    expected = vitrail.explain(model.double(), IMAGES.double(), "vtranm", target=2)
    torch.testing.assert_close(found.maps, expected.maps.float(), rtol=0, atol=1e-4)


@pytest.mark.parametrize("score", ["prob", "logprob"])
@pytest.mark.parametrize("logit", [-30.0, 1.0, 12.0, 17.0, 24.0])
def test_gradient_of_a_confident_sigmoid(logit, score):
    """Its derivative p (1 - p) was 17 % off at a logit of 15 and zero from 17 on."""
    logits = torch.tensor([[logit, 0.5]], requires_grad=True)
    (found,) = torch.autograd.grad(class_scores(logits, score, scores="sigmoid")[0, 0], logits)
    against = torch.sigmoid(-logits.detach().double())[0, 0]  # 1 - p
    expected = against if score == "logprob" else against * torch.sigmoid(logits.detach().double())[0, 0]
    torch.testing.assert_close(found, torch.stack([expected, expected * 0]).float()[None], rtol=1e-5, atol=0)


@pytest.mark.parametrize("score", ["prob", "logprob"])
@pytest.mark.parametrize("margin", [1.0, 12.0, 17.0, 24.0])
def test_gradient_of_the_probability_of_a_confident_group(margin, score):
    logits = torch.tensor([[margin, margin - 0.3, -torch.inf, 0.0]], requires_grad=True)
    group = vitrail.ClassGroup([0, 1])
    (found,) = torch.autograd.grad(class_scores(logits, score, [group])[0, 4], logits)
    wide = logits.detach().double().requires_grad_()
    (expected,) = torch.autograd.grad(torch.sigmoid(wide[0, :2].logsumexp(0) - wide[0, 2:].logsumexp(0)), wide)
    probability = 1.0 if score == "prob" else float(wide.detach().softmax(-1)[0, :2].sum())
    torch.testing.assert_close(found, (expected / probability).float(), rtol=1e-5, atol=0)
    torch.testing.assert_close(class_scores(logits, score, [group]), class_scores(logits.detach(), score, [group]))


@pytest.mark.parametrize("method", ["leadlight", "vtranm", "gradient_x_input:score=prob", "transformer_mm:score=prob"])
def test_maps_of_a_confident_sigmoid_do_not_depend_on_the_precision(method):
    model = tiny_vit()
    with torch.no_grad():
        model.head.bias[2] += 20
    found = vitrail.explain(model, IMAGES, method, target=2, scores="sigmoid")
    assert (found.logits[:, 2].sigmoid() == 1).all()
    expected = vitrail.explain(model.double(), IMAGES.double(), method, target=2, scores="sigmoid")
    torch.testing.assert_close(found.maps, expected.maps.float(), rtol=0, atol=1e-4)


@pytest.mark.parametrize("target", [2, 0])
def test_maps_of_a_model_that_returns_certain_probabilities_do_not_depend_on_the_precision(target):
    """Maps with respect to a logit were others from a probability of 1 - 1e-6 on, and not constant."""
    bare = tiny_vit()
    with torch.no_grad():
        bare.head.bias[2] += 18
    model = torch.nn.Sequential(bare, torch.nn.Softmax(-1)).eval()
    methods = ["gradient_x_input:score=logit", "leadlight", "transformer_mm", "attnlrp", "conservative_lrp"]
    found = vitrail.explain(model, IMAGES, methods=methods, target=target)
    assert (model(IMAGES)[:, 2] > 1 - 1e-6).all()
    expected = vitrail.explain(model.double(), IMAGES.double(), methods=methods, target=target)
    for name in methods:
        torch.testing.assert_close(found[name].maps, expected[name].maps.float(), rtol=0, atol=1e-4)
