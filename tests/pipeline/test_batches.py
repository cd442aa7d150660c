"""Maps of a batch are those of its inputs alone, also where the inputs have different masks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import vitrail
from vitrail.errors import NotApplicableError
from vitrail.methods import METHODS
from vitrail.models.plain_vit import PlainBlock
from vitrail.testing import quick, tiny_vit

pytestmark = pytest.mark.filterwarnings("ignore")
IMAGES = torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(0)).double()
#: The default methods, controls and those that chain gradients; all others are slow tests.
FEW = ("leadlight", "vtranm", "gradsam", "rollout", "grad_rollout", "legrad", "attnlrp", "grad_eclip", "random")
#: Rules of these methods divide by sums that cancel.
STABLE = {"lrp": {"epsilon": 0.001}, "transformer_attribution": {"epsilon": 0.001}}
#: Controls and features, which are there for all patches.
ALL_PATCHES = ("random", "centre", "edges", "inverted", "gradcam_features")


class ExplicitBlock(PlainBlock):
    """The same block with its attention written out, which adds the mask to the logits."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        logits = q @ k.mT * q.shape[-1] ** -0.5
        if mask is not None:
            logits = logits + torch.where(mask, 0.0, -1e9).to(logits)
        x = x + self.proj((logits.softmax(-1) @ v).transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x))


class MaskedViT(nn.Module):
    """A ViT in which no token attends to some patches: the last ones, the black ones, or those that are given."""

    def __init__(self, by: str, explicit: bool = False) -> None:
        super().__init__()
        self.vit, self.by = tiny_vit(), by
        for block in self.vit.blocks if explicit else ():
            block.__class__ = ExplicitBlock

    def forward(self, images: Tensor, present: Tensor | None = None) -> Tensor:
        x = self.vit.embed_tokens(images)
        if self.by == "place":
            present = torch.arange(16) < 12
        elif self.by == "colour":
            present = nn.functional.max_pool2d(images.abs().amax(1), 8).flatten(1) > 0
        assert present is not None
        keys = nn.functional.pad(present.expand(len(x) if self.by != "place" else 1, -1), (1, 0), value=True)
        for block in self.vit.blocks:
            x = block(x, keys[:, None, None].expand(-1, 1, 17, -1))
        return self.vit.head(self.vit.norm(x)[:, 0])


def cut_images() -> tuple[Tensor, Tensor]:
    """Images of which the first is whole and the others end with black patches, and which patches are not black."""
    present = torch.ones(3, 16, dtype=torch.bool)
    present[1, 12:] = present[2, 8:] = False
    pixels = present.view(3, 1, 4, 4).repeat_interleave(8, 2).repeat_interleave(8, 3)
    return IMAGES * pixels, present


def inputs_of(by: str) -> tuple[Any, Tensor]:
    """Inputs, and which patches the output depends on."""
    if by == "place":
        return IMAGES, (torch.arange(16) < 12).expand(3, -1)
    images, present = cut_images()
    return (images if by == "colour" else {"images": images, "present": present}), present


def single(inputs: Any, i: int) -> Any:
    return {k: v[i : i + 1] for k, v in inputs.items()} if isinstance(inputs, dict) else inputs[i : i + 1]


@pytest.mark.parametrize(
    ("by", "explicit"), [("place", False), ("given", False), ("given", True), ("colour", False), ("place", True)]
)
@pytest.mark.parametrize(
    "method", [name if name in FEW else pytest.param(name, marks=pytest.mark.slow) for name in quick()]
)
def test_masked_patches_have_no_relevance_in_a_batch(method: str, by: str, explicit: bool) -> None:
    """The first image has no masked patches, so that the structure that is measured on it knows of none."""
    inputs, present = inputs_of(by)
    methods = {method: quick()[method]}
    try:
        alone = [
            vitrail.explain(MaskedViT(by, explicit).double().eval(), single(inputs, i), methods=methods, target=1)
            for i in range(3)
        ]
    except NotApplicableError as refused:
        pytest.skip(str(refused))
    expected = torch.cat([one[method].grid for one in alone])
    model = MaskedViT(by, explicit).double().eval()
    found = vitrail.explain(model, inputs, methods=methods, target=1)[method].grid
    later = vitrail.explain(model, single(inputs, 1), methods=methods, target=1)[method].grid
    scale = 1e-6 * float(expected.abs().max())
    torch.testing.assert_close(found, expected, rtol=0, atol=scale)
    torch.testing.assert_close(later, expected[1:2], rtol=0, atol=scale)
    if found.shape[-2:] == (4, 4) and method not in ALL_PATCHES:
        assert not found[:, 0].flatten(1)[~present].any()


class PaddedReader(nn.Module):
    """A classifier of words that masks the word 0 by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.vit, self.words = tiny_vit(), nn.Embedding.from_pretrained(torch.randn(9, 32))

    def get_input_embeddings(self) -> nn.Module:
        return self.words

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.words(input_ids) + self.vit.position[:, : input_ids.shape[1]]
        for block in self.vit.blocks:
            x = block(x, (input_ids != 0)[:, None, None])
        return self.vit.head(self.vit.norm(x)[:, 0])


@pytest.mark.parametrize("method", ["leadlight", "gradsam", "gradtoken", "random", "shapley:quick"])
def test_padding_that_the_model_finds_by_itself(method: str) -> None:
    torch.manual_seed(0)
    model = PaddedReader().double().eval()
    ids = torch.tensor([[3, 1, 4, 1, 5, 8], [2, 6, 5, 3, 0, 0], [7, 8, 0, 0, 0, 0]])
    found = vitrail.explain(model, {"input_ids": ids}, method, target=1).grid[:, 0]
    assert not found[ids[:, -found.shape[1] :] == 0].any()
    for i, row in enumerate(ids):
        vitrail.forget(model)
        alone = vitrail.explain(model, {"input_ids": row[None]}, method, target=1).grid[0, 0]
        torch.testing.assert_close(found[i], alone, rtol=0, atol=1e-6 * float(alone.abs().max()))


DIFFERENCES = {
    "contrast": vitrail.contrast(1, 2),
    "function": lambda output: output[:, 1] - output[:, 3:].mean(1),
    "log-odds": lambda output: output[:, 1] - output[:, 2:].logsumexp(1),
}


@pytest.mark.parametrize("method", [name for name, one in METHODS.items() if one.family == "relevance"])
@pytest.mark.parametrize("target", list(DIFFERENCES))
def test_relevance_of_a_difference_of_scores_is_that_of_each_image_alone(method: str, target: str) -> None:
    """Totals of one number an image were taken over the batch, so that relevance depended on the other images."""
    given = {"methods": {method: quick()[method] | STABLE.get(method, {})}, "target": DIFFERENCES[target]}
    model = tiny_vit().double()
    found = vitrail.explain(model, IMAGES, **given)[method].grid
    alone = [vitrail.explain(model, IMAGES[i : i + 1], **given)[method].grid for i in range(3)]
    torch.testing.assert_close(found, torch.cat(alone), rtol=0, atol=1e-6 * float(found.abs().max()))


# With 32 tokens a mask for pairs of tokens has as many rows as a pass has sets of units: it broadcast, without error.
@pytest.mark.parametrize(("method", "tokens"), [("shapley", 7), ("context_cite", 7), ("context_cite", 32)])
def test_tokens_are_removed_by_masks_for_pairs_of_tokens_as_by_those_for_tokens(method: str, tokens: int) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    model = transformers.BertForSequenceClassification(
        transformers.BertConfig(vocab_size=50, num_labels=3, initializer_range=0.5, **sizes)
    ).eval()
    ids = torch.randint(5, 50, (2, tokens))
    valid = torch.arange(tokens)[None] < torch.tensor([[tokens - 2], [tokens]])
    expected = vitrail.explain(model, {"input_ids": ids, "attention_mask": valid.long()}, method, target=1).grid
    pairs = valid[:, None, None].expand(-1, 1, tokens, -1)
    found = vitrail.explain(model, {"input_ids": ids, "attention_mask": pairs}, method, target=1).grid
    assert expected.abs().max() > 1e-3
    # Random sets of units also have the padding, of which nothing is known, among them.
    first = 0 if method == "shapley" else 1
    torch.testing.assert_close(found[first:], expected[first:], rtol=1e-4, atol=1e-5)
    added = torch.zeros(pairs.shape).masked_fill(~pairs, torch.finfo(torch.float32).min)
    given = {"input_ids": ids, "attention_mask": added}
    for removal, reason in {"mask": "pass one of shape", "tokens": "are not left out beside"}.items():
        with pytest.raises(NotApplicableError, match=reason):
            vitrail.explain(model, given, methods={method: {"removal": removal}}, target=1)
    filled = vitrail.explain(model, given, methods={method: {"removal": "fill"}}, target=1)[method].grid
    assert torch.equal(vitrail.explain(model, given, method, target=1).grid, filled)
