"""Options of methods, as they are typed or given: of the right kind, or refused before anything is computed."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import vitrail
from vitrail.errors import OptionError
from vitrail.methods import METHODS, find
from vitrail.testing import tiny_vit


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("attnlrp:gamma_conv=abc", "gamma_conv='abc' of attnlrp must be a number; it is 0.25 by default"),
        ("rollout:start=1.5", "start=1.5 of rollout must be a whole number; it is 0 by default"),
        ("leadlight:mix=much", "mix='much' of leadlight must be a number; it is 0.75 by default"),
        ("leadlight:source=1.5", "source=1.5 of leadlight must be a word; it is both by default"),
        ("gradtoken:variant=true", "variant=True of gradtoken must be a whole number; it is 4 by default"),
        ("rise:masks=none", "masks=None of rise must be a whole number; it is 4000 by default"),
    ],
)
def test_a_value_of_the_wrong_kind_is_refused(spec, said):
    with pytest.raises(OptionError) as refused:
        find(spec)
    assert str(refused.value) == said


@pytest.mark.parametrize("name", METHODS)
def test_every_option_says_what_it_takes_and_its_own_values_fit(name):
    method = METHODS[name]
    assert set(method.options) - {"score"} == set(method.option_types)
    find(name, method.options)
    for variant in method.variants:
        find(f"{name}:{variant}")
    for option in method.option_types:
        with pytest.raises(OptionError, match=f"of {name} must be"):
            find(name, {option: 0.5 if float not in method.option_types[option] else "word"})


def test_numbers_of_other_libraries_are_numbers():
    model, images = tiny_vit(), torch.randn(1, 3, 32, 32)
    expected = vitrail.explain(model, images, "leadlight:mix=0.5", target=1).grid
    for half in (np.float64(0.5), torch.tensor(0.5)):
        assert torch.equal(vitrail.explain(model, images, "leadlight", mix=half, target=1).grid, expected)


def test_one_default_method_everywhere():
    from inspect import signature

    from vitrail.bench.folder import explain_folder
    from vitrail.cli import explain as command
    from vitrail.pipeline.explain import DEFAULT

    assert vitrail.explain(tiny_vit(), torch.randn(1, 3, 32, 32)).method == DEFAULT
    assert command.DEFAULT == DEFAULT
    assert signature(explain_folder).parameters["methods"].default == (DEFAULT,)
