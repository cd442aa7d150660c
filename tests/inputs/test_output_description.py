"""Outputs: which tensor holds the class scores, and what turns these into probabilities."""

import warnings
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import vitrail
from vitrail.errors import GuessWarning, OptionError, TargetError
from vitrail.inputs.output_description import describe_output
from vitrail.testing import tiny_vit

IMAGES = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))


class Returning(nn.Module):
    """A ViT whose output is a function of its logits, shape (b, 5)."""

    def __init__(self, output, **attributes):
        super().__init__()
        self.vit, self.output = tiny_vit(), output
        for name, value in attributes.items():
            setattr(self, name, value)

    def forward(self, images):
        return self.output(self.vit(images))


def with_features(logits):
    return logits.repeat(1, 4), logits


def states(problem):
    return SimpleNamespace(problem_type=problem, num_labels=5)


def plain(method, **options):
    return vitrail.explain(tiny_vit(), IMAGES, method, **options)


@pytest.mark.parametrize("output", [1, "[1]", lambda output: output[1]], ids=["index", "name", "function"])
def test_scores_beside_features_are_chosen(output):
    model = Returning(with_features).eval()
    with pytest.raises(TargetError, match=r"\[0\] \(2, 20\), \[1\] \(2, 5\); choose one by output=0 or output=1"):
        vitrail.explain(model, IMAGES, "leadlight")
    for method in ("leadlight", "occlusion", "attnlrp"):
        expected = plain(method, target=3)
        found = vitrail.explain(model, IMAGES, method, target=3, output=output)
        assert found.logits.shape == (2, 5)
        assert torch.allclose(found.grid, expected.grid, atol=1e-5)
    with pytest.raises(TargetError, match="5 classes"):
        vitrail.explain(model, IMAGES, target=12, output=output)


def test_stated_classes_choose_the_scores():
    model = Returning(with_features, num_classes=5).eval()
    assert torch.allclose(
        vitrail.explain(model, IMAGES, "rise", masks=8, target=3).grid, plain("rise", masks=8, target=3).grid
    )


def test_a_part_that_does_not_exist_is_named():
    with pytest.raises(OptionError, match=r"output='scores'.*\[0\] \(1, 20\), \[1\] \(1, 5\)"):
        vitrail.explain(Returning(with_features).eval(), IMAGES[:1], output="scores")
    with pytest.raises(OptionError, match="name or the index"):
        vitrail.explain(tiny_vit(), IMAGES, output=1.5)
    with pytest.raises(OptionError, match="'softmax', 'sigmoid', 'identity'"):
        vitrail.explain(tiny_vit(), IMAGES, scores="logits")


STATED = {
    "config": ({"config": states("multi_label_classification")}, {}, "sigmoid"),
    "loss": ({"loss": nn.BCEWithLogitsLoss()}, {}, "sigmoid"),
    "argument": ({}, {"scores": "sigmoid"}, "sigmoid"),
    "regression": ({"config": states("regression")}, {}, "identity"),
    "argument over config": ({"config": states("regression")}, {"scores": "softmax"}, "softmax"),
    "nothing": ({}, {}, "softmax"),
}


@pytest.mark.parametrize("case", STATED)
def test_probabilities_are_those_the_model_states(case):
    attributes, options, expected = STATED[case]
    model = Returning(lambda logits: logits, **attributes).eval()
    with torch.no_grad():
        logits = tiny_vit()(IMAGES)
    found = vitrail.explain(model, IMAGES, "occlusion", target=2, **options)
    assert found.scores == expected
    as_stated = {"softmax": logits.softmax(1), "sigmoid": logits.sigmoid(), "identity": logits}[expected][:, 2]
    if expected == "identity":
        assert found.probabilities is None
    else:
        assert torch.allclose(found.probabilities[:, 0], as_stated, atol=1e-6)
    # Perturbation methods explain the same number as a target function does.
    functions = {
        "softmax": lambda o: o.softmax(1)[:, 2],
        "sigmoid": lambda o: o.sigmoid()[:, 2],
        "identity": lambda o: o[:, 2],
    }
    own = vitrail.explain(model, IMAGES, "occlusion", target=functions[expected])
    assert torch.allclose(found.grid, own.grid, atol=1e-6)


def test_a_sigmoid_at_the_end_is_found():
    model = Returning(torch.sigmoid).eval()
    with pytest.warns(GuessWarning, match="log-odds"):
        found = vitrail.explain(model, IMAGES, "occlusion", target=2)
    assert found.scores == "sigmoid"
    assert torch.allclose(found.probabilities[:, 0], model(IMAGES)[:, 2], atol=1e-6)
    assert torch.allclose(
        found.grid, vitrail.explain(model, IMAGES, "occlusion", target=lambda o: o[:, 2]).grid, atol=1e-5
    )


def test_gradients_of_a_sigmoid_do_not_mix_classes():
    """The gradient of one class of a multi-label model is that of its own logit, scaled."""
    multi = Returning(lambda logits: logits, config=states("multi_label_classification")).eval()
    found = vitrail.explain(multi, IMAGES, "gradient_x_input", target=2, score="logprob")
    expected = vitrail.explain(multi, IMAGES, "gradient_x_input", target=lambda o: nn.functional.logsigmoid(o[:, 2]))
    assert torch.allclose(found.grid, expected.grid, atol=1e-6)
    mixed = vitrail.explain(tiny_vit(), IMAGES, "gradient_x_input", target=2, score="logprob")
    assert not torch.allclose(found.grid, mixed.grid, atol=1e-4)


def test_groups_need_classes_that_exclude_each_other():
    with pytest.raises(TargetError, match="exclude each other"):
        vitrail.explain(tiny_vit(), IMAGES, "occlusion", target=vitrail.ClassGroup([0, 1]), scores="sigmoid")


def test_doubts_about_scores_are_told():
    with pytest.warns(GuessWarning, match="scores='identity'"):
        vitrail.explain(Returning(lambda logits: logits.sum(1, keepdim=True)).eval(), IMAGES, "rollout")
    with pytest.warns(GuessWarning, match="scores='sigmoid' for several labels"):
        vitrail.explain(Returning(lambda logits: logits - 20).eval(), IMAGES, "rollout")
    with warnings.catch_warnings():
        warnings.simplefilter("error", GuessWarning)
        vitrail.explain(Returning(lambda logits: logits).eval(), IMAGES, "rollout")
        vitrail.explain(Returning(lambda logits: logits - 20).eval(), IMAGES, "rollout", scores="softmax")


def test_the_same_model_read_in_two_ways():
    model = Returning(lambda logits: {"probabilities": logits.softmax(1), "raw": logits.flip(1)}).eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", GuessWarning)
        for _ in range(2):
            first = vitrail.explain(model, IMAGES, "occlusion", target=1, output="probabilities")
            second = vitrail.explain(model, IMAGES, "occlusion", target=3, output="raw")
            assert torch.allclose(first.grid, second.grid, atol=1e-5)
            assert torch.allclose(first.probabilities, second.probabilities, atol=1e-5)


def test_kinds_of_output_tensors():
    config = SimpleNamespace(vocab_size=9)
    model = nn.Identity()
    model.config = config
    output = {
        "logits": torch.zeros(2, 7, 9), "pred_boxes": torch.zeros(2, 3, 4), "pred_masks": torch.zeros(2, 3, 8, 8),
        "last_hidden_state": torch.zeros(2, 7, 4),
    }  # fmt: skip
    kinds = {one.name: one.kind for one in describe_output(model, output).tensors}
    assert kinds == {
        "logits": "vocabulary", "pred_boxes": "boxes", "pred_masks": "masks", "last_hidden_state": "features",
    }  # fmt: skip
