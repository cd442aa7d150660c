"""Catalogue of the papers' models: weights, mean and standard deviation; nothing is downloaded."""

from __future__ import annotations

import re

import pytest
import torch

from vitrail.errors import ModelError, WeightsError
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
    with pytest.raises(ModelError, match=r"unknown model 'vit-b17': did you mean vit-b16"):
        load("vit-b17")


@pytest.mark.parametrize(("name", "meant"), [
    ("vit_tiny_patch16_224", "timm:vit_tiny_patch16_224"),
    ("vit_base_patch16_224.augreg_in21k", "timm:vit_base_patch16_224.augreg_in21k"),
    ("timm/vit_tiny_patch16_224.augreg_in21k_ft_in1k", "timm:vit_tiny_patch16_224.augreg_in21k_ft_in1k"),
    ("google/vit-base-patch16-224", "hf:google/vit-base-patch16-224"),
    ("vit_b_16", "torchvision:vit_b_16"),
    ("ViT-B-32/openai", "open_clip:ViT-B-32/openai"),
    ("scnes", "scenes"),
    ("tim:vit_tiny_patch16_224", "timm:vit_tiny_patch16_224"),
    ("HuggingFace:google/vit-base-patch16-224", "hf:google/vit-base-patch16-224"),
])  # fmt: skip
def test_a_name_without_its_source_is_completed(name, meant):
    with pytest.raises(ModelError, match=rf"did you mean (\S+ or )*{re.escape(meant)}\b"):
        load(name)


def test_a_folder_or_a_file_in_place_of_a_name_says_what_to_write(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ModelError, match=re.escape(f"did you mean hf:{tmp_path}?")):
        load(str(tmp_path))
    with pytest.raises(ModelError, match="is a file of weights: name the architecture"):
        load(str(tmp_path / "model.safetensors"))


@pytest.mark.parametrize("prefix", ["", "module."])
def test_image_size_and_classes_are_those_of_the_weights(tmp_path, prefix):
    from safetensors.torch import save_file

    name = "test_vit"  # timm's smallest: 160 pixels, patches of 16, 1,000 classes
    given = timm.create_model(name, img_size=96, num_classes=7)
    save_file({prefix + k: v.half() for k, v in given.state_dict().items()}, tmp_path / "fitted.safetensors")
    loaded = load(f"timm:{name}", tmp_path / "fitted.safetensors")
    assert loaded.preprocess.size == (96, 96)
    assert loaded.preprocess.squash
    image = torch.randn(1, 3, 96, 96)
    assert torch.allclose(loaded.module(image), given.eval()(image), atol=0.02)
    save_file({"head.weight": torch.zeros(3, 5)}, tmp_path / "other.safetensors")
    with pytest.raises(WeightsError, match="does not fit"):
        load(f"timm:{name}", tmp_path / "other.safetensors")
