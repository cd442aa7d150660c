"""Heads of several labels and of regressions: the score of a class does not depend on the other classes."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from tests.zoo.entry import Entry, Subject
from tests.zoo.own_models import GRID, images, vit
from tests.zoo.pairs import VISION
from tests.zoo.pairs import build as hugging_face
from vitrail.models.plain_vit import PlainViT

#: Methods that read attention, gradients of a probability, and probabilities of perturbed images.
PROBABILITIES = ("rollout", "transformer_mm:score=prob", "gradient_x_input:score=prob", "occlusion")


class LabelledViT(nn.Module):
    """A ViT and what states the kind of its scores: a loss, or the function at its end."""

    def __init__(self, loss: nn.Module | None = None, end: Callable[[Tensor], Tensor] | None = None) -> None:
        super().__init__()
        self.vit: PlainViT = vit()
        self.loss, self.end = loss, end

    def forward(self, x: Tensor) -> Tensor:
        scores = self.vit(x)
        return scores if self.end is None else self.end(scores)


def other_heads(model: nn.Module) -> nn.Module:
    """A copy of a model whose scores of all classes but the explained one are others."""
    copy = deepcopy(model)
    heads = [m for m in copy.modules() if isinstance(m, nn.Linear) and m.out_features == 5]
    with torch.no_grad():
        for head in heads:
            kept = head.weight[1].clone(), head.bias[1].clone()
            head.weight.mul_(-3).add_(0.1)
            head.bias.add_(2)
            head.weight[1], head.bias[1] = kept
    assert heads
    return copy


def several_labels(build: Callable[[], nn.Module], **options: Any) -> Subject:
    """A model of several labels; its twin has other scores of the other classes."""
    model = build().eval()
    found = Subject(model, images(), 1, grid=GRID, options=options)
    return replace(found, twin=replace(found, model=other_heads(model).eval()))


def hugging_face_labels(problem: str) -> Subject:
    found = hugging_face(
        "ViTForImageClassification", "ViTConfig", {"pixel_values": images(2).float().repeat(1, 1, 2, 2)}, 1, (),
        **VISION, num_labels=5, problem_type=problem,
    )  # fmt: skip
    return replace(found, twin=replace(found, model=other_heads(found.model)))


def sigmoid_at_the_end() -> Subject:
    """Its twin has no sigmoid and is read through one."""
    twin = Subject(LabelledViT(), images(), 1, grid=GRID, options={"scores": "sigmoid"})
    return Subject(LabelledViT(end=torch.sigmoid), images(), 1, grid=GRID, twin=twin)


def regression() -> Subject:
    """The value itself is explained, whatever its sign: its twin is a function of the output."""
    model = vit().eval()
    found = Subject(model, images(), 1, grid=GRID, options={"scores": "identity"})
    return replace(found, twin=replace(found, target=lambda o: o[:, 1], options={}))


def one_output() -> Subject:
    """One number, of which nothing says whether it is a regression or the log-odds of a class."""
    return Subject(vit(classes=1).eval(), images(), 0, grid=GRID)


ENTRIES = [
    Entry("hf:ViTForImageClassification, several labels", partial(hugging_face_labels, "multi_label_classification"),
          ("same_as_twin", "permute_examples"), PROBABILITIES),
    Entry("own:several_labels_by_argument", partial(several_labels, LabelledViT, scores="sigmoid"),
          ("same_as_twin",), PROBABILITIES, slow=False),
    Entry("own:several_labels_by_loss", partial(several_labels, partial(LabelledViT, nn.BCEWithLogitsLoss())),
          ("same_as_twin",), PROBABILITIES, slow=False),
    Entry("own:sigmoid_at_the_end", sigmoid_at_the_end, ("same_as_twin",), (*PROBABILITIES, "attnlrp"),
          slow=False),
    Entry("own:sigmoid_at_the_end, first call", sigmoid_at_the_end, warned="sigmoids of single classes", slow=False),
    Entry("own:one_output", one_output, warned="scores='identity' for a regression", slow=False),
    Entry("own:regression", regression, ("same_as_twin",), PROBABILITIES, slow=False),
]  # fmt: skip
