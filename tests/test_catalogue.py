"""The catalogue of the papers' models: weights, mean and standard deviation agree with timm; nothing is downloaded."""

from __future__ import annotations

import pytest

from vitrail.errors import ModelError
from vitrail.models import load
from vitrail.models.catalogue import CATALOGUE, full_name
from vitrail.models.loading import FETCHING, offline

timm = pytest.importorskip("timm")


@pytest.mark.parametrize("name", CATALOGUE)
def test_catalogue_agrees_with_timm(name):
    entry = CATALOGUE[name]
    config = timm.get_pretrained_cfg(entry.timm)
    assert config is not None
    assert config.tag == entry.timm.partition(".")[2], "timm replaces unknown tags by another one"
    assert (config.mean, config.std, config.input_size) == (entry.mean, entry.std, (3, 224, 224))
    assert config.num_classes == 1000


@pytest.mark.parametrize("name", ["deit-t", "vit-t16"])
def test_a_short_name_loads_the_full_name(name):
    about, entry = load(name, pretrained=False), CATALOGUE[name]
    assert about.name == full_name(name) == entry.name
    assert (about.preprocess.mean, about.preprocess.std) == (entry.mean, entry.std)
    count = sum(p.numel() for p in about.module.parameters())
    assert round(count / 1e6, 1) == entry.params
    assert len(about.module.blocks) == entry.blocks
    assert about.module.num_features == entry.width


def test_missing_weights_raise(monkeypatch, tmp_path):
    monkeypatch.setattr("timm.create_model", lambda name, pretrained: (_ for _ in ()).throw(OSError("no route")))
    with offline(), pytest.raises(ModelError, match=f"could not be made: no route .{FETCHING[:-1]}"):
        load("vit-t16")
    with pytest.raises(ModelError, match=r"unknown source 'vit-b17'.*vit-b16, "):
        load("vit-b17")
