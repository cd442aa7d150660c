"""Streams of tokens as they are found, against layers listed by hand, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import vitrail
from tests.zoo.encoder_decoders import CASES, label_score
from vitrail.capture.stream_search import find_streams
from vitrail.errors import NotApplicableError, VitrailError
from vitrail.inputs.user_inputs import to_model_inputs
from vitrail.models import describe

FAST = ("bart", "detr")
# Of "vilbert", regions that no attention has changed count as a stream of their own where the text is explained.
NAMES = [name for name in CASES if not name.startswith("vilbert")]
PARAMETERS = [pytest.param(name, marks=[pytest.mark.slow] * (name not in FAST)) for name in NAMES]


@pytest.mark.parametrize("name", PARAMETERS)
def test_layers_are_those_listed_by_hand(name):
    case = CASES[name]()
    subject = case.subject
    given = to_model_inputs(
        subject.inputs, describe(subject.model), subject.options.get("roles"), subject.options.get("of")
    )
    found = find_streams(subject.model, given, subject.target, from_words=True)
    assert found is not None
    names: dict[str, int] = {}
    listed = [layer for step in case.plan for layer in step]
    for layer in found.layers:
        queries, keys = listed[layer.call]
        assert names.setdefault(queries, layer.queries) == layer.queries
        assert names.setdefault(keys, layer.keys) == layer.keys
    left_out = len(listed) - len(found.layers)
    assert left_out == (2 if name.startswith("lxmert") else 0), "the answer does not read the last layers of the image"
    assert len(set(names.values())) == len(names) == 2
    assert found.explained == names[case.explained]
    assert [found.layers[i].queries for i in found.read] == [names[case.read[0]]]


@pytest.mark.parametrize("position", range(9))
def test_one_position_of_the_encoder_is_enough(position):
    subject = CASES["bart"]().subject
    given = to_model_inputs(subject.inputs, describe(subject.model))
    expected = find_streams(subject.model, given, subject.target, from_words=True)
    assert expected is not None

    def keep_one(module: nn.Module, args: object, output: Any) -> Any:
        others = torch.arange(9) != position
        return replace(output, last_hidden_state=output.last_hidden_state.masked_fill(others[:, None], 0))

    with subject.model.model.encoder.register_forward_hook(keep_one):
        assert find_streams(subject.model, given, subject.target, from_words=True) == expected


class Mixing(nn.Module):
    """A decoder of two layers, the second of which may also read the mean of the encoder's tokens.

    Its queries are rolled by ``shift`` between the layers.
    """

    def __init__(self, leak: bool = False, shift: int = 0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Conv2d(3, 16, 8, 8)
        self.attention, self.own, self.cross = (nn.MultiheadAttention(16, 2, batch_first=True) for _ in range(3))
        self.query, self.head, self.leak = nn.Parameter(torch.randn(1, 12, 16)), nn.Linear(16, 5), leak
        self.shift = shift

    def forward(self, images: Tensor) -> Tensor:
        x = self.embed(images).flatten(2).mT
        x = x + self.attention(x, x, x)[0]
        q = self.query.expand(len(x), -1, -1)
        for leak in (False, self.leak):
            q = q + self.own(q, q, q)[0]
            if leak:
                q = q + x.mean(1, keepdim=True)
            q = q + self.cross(q, x, x)[0].roll(self.shift, 1)
        return self.head(q)[:, 2]


def second(output: Tensor) -> Tensor:
    """The second score."""
    return output[:, 1]


def test_information_past_the_attention_is_refused():
    images = torch.randn(2, 3, 32, 32)
    e = vitrail.explain(Mixing().eval(), images, "transformer_mm", target=second)
    assert e.grid.shape == (2, 1, 4, 4)
    for model in (Mixing(leak=True), Mixing(shift=1), Mixing(shift=2)):
        with pytest.raises(NotApplicableError, match="transformer_mm does not apply to Mixing"):
            vitrail.explain(model.eval(), images, "transformer_mm", target=second)


@pytest.mark.slow
def test_attention_at_sampled_points_is_refused():
    from transformers import DeformableDetrConfig, DeformableDetrForObjectDetection, ResNetConfig

    sizes = {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "layer_type": "basic"}
    backbone = ResNetConfig(**sizes, out_features=["stage1", "stage2"])
    config = DeformableDetrConfig(
        use_timm_backbone=False, backbone=None, use_pretrained_backbone=False, backbone_config=backbone, d_model=32,
        encoder_layers=1, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=48,
        decoder_ffn_dim=48, num_queries=5, num_labels=4, num_feature_levels=2,
    )  # fmt: skip
    model = DeformableDetrForObjectDetection(config).eval()
    given = {"pixel_values": torch.randn(1, 3, 64, 64)}
    with pytest.raises(VitrailError, match="reads features at sampled points"):
        vitrail.explain(model, given, "transformer_mm", target=label_score)
    assert vitrail.explain(model, given, "gradient_x_input", target=label_score).grid.any()
