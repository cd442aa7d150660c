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
