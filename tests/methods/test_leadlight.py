"""Leadlight compared with other classes: which classes are read, and what depends on them."""

import pytest
import torch

import vitrail
from vitrail.errors import OptionError
from vitrail.methods import find
from vitrail.methods.cost import ModelSize
from vitrail.testing import tiny_vit

IMAGES = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))


def test_a_map_depends_neither_on_other_targets_nor_on_other_images() -> None:
    model = tiny_vit()
    alone = vitrail.explain(model, IMAGES[:1], "leadlight:class", target=1).grid[0, 0]
    together = vitrail.explain(model, IMAGES, "leadlight:class", target=[[3, 1], [0, 2]]).grid[0, 1]
    torch.testing.assert_close(alone, together, rtol=1e-4, atol=1e-6)


def test_without_other_classes_the_source_is_not_changed() -> None:
    model = tiny_vit()
    methods = ["leadlight:object", "leadlight:class,shift=false,contrast=0", "leadlight:class,others=0,shift=false"]
    found = vitrail.explain(model, IMAGES, methods=methods, target=1)
    for method in methods[1:]:
        torch.testing.assert_close(found[method].grid, found["leadlight:object"].grid)
    one = vitrail.explain(model, IMAGES, methods=methods, target=lambda output: output[:, 1])  # one value, no others
    torch.testing.assert_close(one[methods[1]].grid, one[methods[0]].grid)


def test_values_of_a_function_are_compared_with_each_other() -> None:
    model = tiny_vit()
    two = vitrail.explain(model, IMAGES, "leadlight:class,score=logit", target=lambda output: output[:, [1, 2]])
    one = vitrail.explain(model, IMAGES, "leadlight:class,score=logit", target=lambda output: output[:, 1])
    assert (two.grid[:, 0] - one.grid[:, 0]).abs().max() > 1e-3


def test_shifted_averages_have_a_minimum_of_zero() -> None:
    e = vitrail.explain(tiny_vit(), IMAGES, "leadlight:class,mix=1", target=1)
    assert e.grid.amin((2, 3)).tolist() == [[0.0], [0.0]]
    assert (vitrail.explain(tiny_vit(), IMAGES, "leadlight:object,mix=1", target=1).grid > 0).all()


def test_cost_and_refusals() -> None:
    _, method, options = find("leadlight:class")
    assert method.others(options) == 8
    assert method.cost(options, ModelSize(), 2).forwards == 2 * 8 * 2
    assert find("leadlight:object")[1].others(find("leadlight:object")[2]) == 0
    with pytest.raises(OptionError, match="others=-1 must be a whole number of at least 0"):
        vitrail.explain(tiny_vit(), IMAGES, "leadlight", others=-1)
    with pytest.raises(OptionError, match="contrast ≥ 0"):
        vitrail.explain(tiny_vit(), IMAGES, "leadlight", contrast=-1.0)
    with pytest.raises(OptionError, match="gradients of several classes"):
        vitrail.explain(tiny_vit(), IMAGES, "shapley", prior="leadlight:class")
