"""Methods across streams of tokens against slow replicas, known answers, and one stream as always."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import vitrail
from tests.replicas import streams as replica
from tests.zoo.encoder_decoders import CASES, bart, detector, lxmert, t5, vilbert
from tests.zoo.vision_language import blip2
from vitrail.capture.forward import forward_pass
from vitrail.capture.inputs import ModelInputs
from vitrail.capture.streams import StreamLayer, Streams
from vitrail.capture.structure import read_structure
from vitrail.capture.trace import ALL
from vitrail.errors import OptionError
from vitrail.methods._streams import rolled_relevance, updated_relevance
from vitrail.testing import tiny_vit

#: The same weights with attention that the model writes out.
EAGER = {
    "bart": partial(bart, "eager"), "t5": partial(t5, "eager"), "detr": partial(detector, "Detr", "eager"),
    "conditional_detr": partial(detector, "ConditionalDetr", "eager"), "lxmert, text": lxmert,
    "lxmert, image": partial(lxmert, "visual_feats"), "vilbert, text": vilbert,
    "vilbert, image": partial(vilbert, "visual_feats"),
}  # fmt: skip

#: Layers that compute the keys of the upper half of the attention inside the stream that is explained.
KEYS = {
    "bart": ["model.encoder.layers.1.self_attn.k_proj"],
    "t5": ["encoder.block.1.layer.0.SelfAttention.k"],
    "detr": ["model.encoder.layers.1.self_attn.k_proj"],
    "conditional_detr": ["model.encoder.layers.1.self_attn.k_proj"],
    "lxmert, text": [f"lxmert.encoder.x_layers.{i}.lang_self_att.self.key" for i in range(2)],
    # The answer does not depend on the last attention between regions.
    "lxmert, image": ["lxmert.encoder.x_layers.0.visn_self_att.self.key"],
}
# The text has a layer more than the image: two of its three layers are the upper half.
KEYS |= {f"vilbert, {name}": [f"pairs.{i}.{k}.key" for i in first] for name, k, first in
         (("text", 2, (0, 1)), ("image", 3, (1,)))}  # fmt: skip
FAST = ("bart", "detr", "vilbert, image")
PARAMETERS = [pytest.param(name, marks=[pytest.mark.slow] * (name not in FAST)) for name in CASES]


@pytest.mark.parametrize("name", PARAMETERS)
def test_agrees_with_the_published_rules(name):
    case, twin = CASES[name](), EAGER[name]()
    subject = case.subject
    methods = ["transformer_mm", "rollout", "grad_rollout:discard=0", "leadlight"]
    found = vitrail.explain(subject.model, subject.inputs, methods=methods, target=subject.target, **subject.options)
    A, dA = replica.attention_and_gradients(twin.subject.model, twin.subject.inputs, subject.target)
    rules = (case.read, case.explained)
    expected = {
        "transformer_mm": replica.transformer_mm(case.plan, A, dA, *rules),
        "rollout": replica.rollout(case.plan, [a.mean(1) for a in A], *rules),
        "grad_rollout:discard=0": replica.rollout(
            case.plan, [(a * g).mean(1).clamp(min=0) for a, g in zip(A, dA, strict=True)], *rules
        ),
    }
    keys = replica.keys_of(twin.subject.model, twin.subject.inputs, KEYS[name])
    against = replica.transformer_mm(case.plan, A, [-g for g in dA], *rules)
    assert callable(subject.target)  # which has no probability
    expected["leadlight"] = replica.leadlight(expected["transformer_mm"], against, keys, [0.5] * len(against))
    for method, slow in expected.items():
        ours = found[method].grid[:, 0].flatten(1)
        assert torch.allclose(ours, slow, rtol=1e-7, atol=1e-9 * float(slow.abs().max())), method


def test_queries_of_a_query_transformer_are_tokens_of_the_language_model():
    """BLIP-2 by the published rules, with the attention of its five queries placed by hand among the words."""
    case = blip2()
    model, inputs = case.model, case.inputs

    def target(output: Any) -> Tensor:
        return output.logits[:, -1, 7]

    methods = ["transformer_mm", "rollout", "grad_rollout:discard=0"]
    found = vitrail.explain(model, inputs, methods=methods, target=target, of="pixel_values")
    model.set_attn_implementation("eager")
    queries, words = torch.arange(1, 6), torch.arange(13)  # a start token, five image tokens, and others
    sides = {"queries": (queries, 13), "words": (words, 13), "patches": (torch.arange(17), 17)}
    layers = [("patches", "patches")] * 2 + [("queries", "queries"), ("queries", "patches")] * 2
    layers += [("words", "words")] * 2

    def placed(matrix: Tensor, layer: tuple[str, str]) -> Tensor:
        (rows, m), (columns, n) = (sides[side] for side in layer)
        whole = matrix.new_zeros(*matrix.shape[:2], m, n)
        whole[:, :, rows[:, None], columns] = matrix
        return whole.double()

    A, dA = (
        [placed(matrix, layer) for matrix, layer in zip(matrices, layers, strict=True)]
        for matrices in replica.attention_and_gradients(model, inputs, target)
    )
    plan = [[tuple("patches" if side == "patches" else "stream" for side in layer)] for layer in layers]
    rules = (("stream", 12), "patches")
    weighted = [(a * g).mean(1).clamp(min=0) for a, g in zip(A, dA, strict=True)]
    expected = {
        "transformer_mm": replica.transformer_mm(plan, A, dA, *rules),
        "rollout": replica.rollout(plan, [a.mean(1) for a in A], *rules),
        "grad_rollout:discard=0": replica.rollout(plan, weighted, *rules),
    }
    for method, slow in expected.items():
        ours = found[method].grid[:, 0].flatten(1).double()
        assert torch.allclose(ours, slow[:, 1:], rtol=1e-4, atol=1e-5 * float(slow[:, 1:].abs().max())), method


def test_one_stream_has_the_same_maps_as_always():
    model = tiny_vit().double()
    given = ModelInputs((torch.randn(2, 3, 32, 32, dtype=torch.float64),))
    structure = read_structure(model, given)
    with forward_pass(model, given, structure, [{"A": ALL, "dA": ALL}]) as one:
        trace = one.trace(one.output[:, 1])
    layers = tuple(StreamLayer(i, 0, 0, i) for i in range(len(trace.blocks)))
    streams = Streams(layers, (structure.tokens,), 0, (len(layers) - 1,))
    readout = trace.readout.expand(2, -1)
    weighted = [(b.A * b.dA).clamp_min(0).mean(1) for b in trace.blocks]
    found = vitrail.explain(model, given.args[0], methods=["transformer_mm", "rollout"], target=1)
    ours = {
        "transformer_mm": updated_relevance(streams, weighted, [readout]),
        "rollout": rolled_relevance(streams, [b.A.mean(1) for b in trace.blocks], [readout]),
    }
    for method, tokens in ours.items():
        assert torch.allclose(trace.patches(tokens), found[method].grid[:, 0].flatten(1), rtol=1e-9)


class OneToken(nn.Module):
    """An encoder whose tokens do not attend to each other, and a decoder that may attend to one of them alone."""

    token = 9

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Conv2d(3, 16, 8, 8)
        self.transformer = nn.Transformer(16, 2, 2, 2, 32, batch_first=True)
        self.query, self.head = nn.Parameter(torch.randn(1, 4, 16)), nn.Linear(16, 5)

    def forward(self, images: Tensor) -> Tensor:
        x = self.embed(images).flatten(2).mT
        n = x.shape[1]
        alone = ~torch.eye(n, dtype=torch.bool)
        one = (torch.arange(n) != self.token).expand(4, n)
        return self.head(self.transformer(x, self.query.expand(len(x), -1, -1), alone, memory_mask=one))


@pytest.mark.parametrize(
    "method", ["transformer_mm", "rollout", "grad_rollout:discard=0", "attnlrp:where=tokens", "leadlight:mix=0"]
)
def test_relevance_is_at_the_only_token_that_is_read(method):
    images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(2)).double()
    e = vitrail.explain(OneToken().double().eval(), images, method, target=lambda o: o[:, 1, 3])
    grid = e.grid[:, 0].flatten(1)
    elsewhere = grid.clone()
    elsewhere[:, OneToken.token] = 0
    assert grid[:, OneToken.token].abs().min() > 0
    assert elsewhere.abs().max() <= 1e-9 * grid.abs().max()


def test_leadlight_spreads_over_tokens_with_the_keys_of_the_one_that_is_read():
    """Two patches of the image are equal, and positions are not added: they get the same share of what is averaged."""
    images = torch.randn(1, 3, 32, 32, generator=torch.Generator().manual_seed(2)).double()
    images[..., :8, :8] = images[..., 16:24, 8:16]  # the patch of the token that is read
    e = vitrail.explain(OneToken().double().eval(), images, "leadlight:mix=1", target=lambda o: o[:, 1, 3])
    grid = e.grid[0, 0].flatten()
    torch.testing.assert_close(grid[0], grid[OneToken.token])
    assert grid[0] == grid.max()


def test_options_for_one_stream_are_refused():
    case = bart()
    given = (case.subject.model, case.subject.inputs)
    with pytest.raises(OptionError, match="start=1 and at='attention'"):
        vitrail.explain(*given, "transformer_mm", start=1, target=case.subject.target)
    with pytest.raises(OptionError, match='source="last" and spread'):
        vitrail.explain(*given, "leadlight:fast", target=case.subject.target)
    with pytest.raises(OptionError, match="on several streams of tokens rollout"):
        vitrail.explain(*given, "rollout:per_head", target=case.subject.target)
