"""Leadlight: what depends on the class, what is read of the pass, and what is refused."""

import pytest
import torch

import vitrail
from vitrail.capture.forward import forward_pass
from vitrail.capture.inputs import ModelInputs
from vitrail.capture.structure import read_structure
from vitrail.capture.trace import ALL
from vitrail.errors import MapWarning, OptionError
from vitrail.testing import tiny_vit

IMAGES = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))


def test_a_map_depends_neither_on_other_targets_nor_on_other_images() -> None:
    model = tiny_vit()
    alone = vitrail.explain(model, IMAGES[:1], "leadlight", target=1).grid[0, 0]
    together = vitrail.explain(model, IMAGES, "leadlight", target=[[3, 1], [0, 2]]).grid[0, 1]
    torch.testing.assert_close(alone, together, rtol=1e-4, atol=1e-6)


def test_what_counts_against_a_class_matters_as_far_as_the_class_is_uncertain() -> None:
    """A function has no probability and counts as uncertain; where the class is certain, the source is not changed."""
    model = tiny_vit().double()
    source, images = "leadlight:contrast=0,mix=0", IMAGES.double()
    methods = ["leadlight:mix=0", source]
    certain = tiny_vit().double()
    with torch.no_grad():
        certain.head.bias[1] = 80.0
    for one, differ in ((model, True), (certain, False)):
        # The logit, since the gradient of a probability of one is zero.
        found = vitrail.explain(one, images, methods=[f"{m},score=logit" for m in methods], target=1)
        ours, plain = (e.grid for e in found.values())
        assert (float((ours - plain).abs().max()) > 1e-3) == differ
    found = vitrail.explain(certain, images, methods=methods, target=lambda output: output[:, 1])
    assert (found[methods[0]].grid - found[source].grid).abs().max() > 1e-3


def test_relevance_is_the_smaller_of_the_shares_of_two_sources() -> None:
    """A patch that one of them leaves out is left out, and one that only one of them stresses is not stressed."""
    methods = {"both": "leadlight:contrast=0,mix=0", "first": "vtranm:af+l,score=prob",
               "second": "transformer_mm:score=prob"}  # fmt: skip
    found = vitrail.explain(tiny_vit().double(), IMAGES.double(), methods=list(methods.values()), target=1)
    both, first, second = (found[spec].grid.flatten(2) for spec in methods.values())
    expected = torch.minimum(first / first.sum(-1, keepdim=True), second / second.sum(-1, keepdim=True))
    torch.testing.assert_close(both, expected / expected.sum(-1, keepdim=True))
    assert (both / both.amax() - first / first.amax()).abs().max() > 0.01, "the two sources differ"


def test_of_two_classes_one_is_the_opposite_of_the_other() -> None:
    """The probabilities of two classes have opposite gradients, so r⁺ and r⁻ change places, and p and 1 − p too."""
    model = tiny_vit(classes=2).double()
    given = ModelInputs((IMAGES.double(),))
    with forward_pass(model, given, read_structure(model, given), [{"A": ALL, "dA": ALL}]) as one:
        p = one.output.softmax(-1)
        first = one.trace(p[:, 0], keep_graph=True)
        second = one.trace(p[:, 1])
    for ours, theirs in zip(first.opposed().blocks, second.blocks, strict=True):
        torch.testing.assert_close(ours.dA, theirs.dA)
        assert ours.A is theirs.A or torch.equal(ours.A, theirs.A)
    torch.testing.assert_close(first.blocks[0].dA, -second.blocks[0].dA)  # the first pass is not changed


def test_shifted_averages_have_a_minimum_of_zero() -> None:
    e = vitrail.explain(tiny_vit(), IMAGES, "leadlight:mix=1", target=1)
    assert e.grid.amin((2, 3)).tolist() == [[0.0], [0.0]]
    assert (vitrail.explain(tiny_vit(), IMAGES, "leadlight:object,mix=1", target=1).grid > 0).all()


def test_relevance_is_a_share_of_what_speaks_for_the_class() -> None:
    """It sums to one for every class and form; the relevance of a patch for two classes can be compared."""
    for form in ("leadlight", "leadlight:object", "leadlight:fast", "leadlight:attention", "leadlight:mix=0"):
        found = vitrail.explain(tiny_vit(), IMAGES, form, target=[[3, 1], [0, 2]]).grid
        torch.testing.assert_close(found.sum((2, 3)), torch.ones(2, 2))
    nothing = tiny_vit()
    with torch.no_grad():
        nothing.head.weight.zero_()
    with pytest.warns(MapWarning, match="constant"):
        assert not vitrail.explain(nothing, IMAGES, "leadlight", target=1).grid.any()


def test_refusals() -> None:
    with pytest.raises(OptionError, match="contrast ≥ 0"):
        vitrail.explain(tiny_vit(), IMAGES, "leadlight", contrast=-1.0)
