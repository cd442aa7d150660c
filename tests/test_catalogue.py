"""Catalogue of the papers' models: weights, mean and standard deviation; nothing is downloaded."""

from __future__ import annotations

import pytest

from vitrail.errors import ModelError
from vitrail.models import load
from vitrail.models.catalogue import CATALOGUE, full_name
from vitrail.models.loading import NO_NETWORK, offline

timm = pytest.importorskip("timm")


@pytest.mark.parametrize("name", CATALOGUE)
def test_entry_matches_timm_configuration(name):
    entry = CATALOGUE[name]
    config = timm.get_pretrained_cfg(entry.timm)
    assert config is not None
    assert config.tag == entry.timm.partition(".")[2], "timm replaces an unknown tag by another one"
    assert (config.mean, config.std, config.input_size) == (entry.mean, entry.std, (3, 224, 224))
    assert config.num_classes == 1000


@pytest.mark.parametrize("name", ["deit-t", "vit-t16"])
def test_short_name_loads_the_model(name):
    loaded, entry = load(name, pretrained=False), CATALOGUE[name]
    assert loaded.name == full_name(name) == entry.name
    assert (loaded.preprocess.mean, loaded.preprocess.std) == (entry.mean, entry.std)
    count = sum(p.numel() for p in loaded.module.parameters())
    assert round(count / 1e6, 1) == entry.params
    assert len(loaded.module.blocks) == entry.blocks
    assert loaded.module.num_features == entry.width


def test_missing_weights_and_unknown_names_raise(monkeypatch, tmp_path):
    monkeypatch.setattr("timm.create_model", lambda name, pretrained: (_ for _ in ()).throw(OSError("no route")))
    with offline(), pytest.raises(ModelError, match=f"cannot create .*: no route .{NO_NETWORK[:-1]}"):
        load("vit-t16")
    with pytest.raises(ModelError, match=r"unknown source 'vit-b17'.*vit-b16, "):
        load("vit-b17")
