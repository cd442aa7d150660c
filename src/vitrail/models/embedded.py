"""Models that come with the package: small, trained by the scripts in ``training/``, usable without a network."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any

from vitrail.errors import WeightsError
from vitrail.models.loaded import LoadedModel
from vitrail.models.plain_vit import PlainViT
from vitrail.models.preprocess import Preprocess

#: Name to what it is; the weights lie beside the package's code, each with a card in ``docs/cards``.
EMBEDDED = {
    "scenes": "a ViT with a CLS token, trained on the embedded scenes",
    "scenes-gap": "the same without CLS: its head reads the mean of the patches",
    "scenes-tagged": "the same as scenes, trained where a corner tag gives the class away",
    "cifar10": "a ViT with a CLS token for CIFAR-10's photographs of 32 pixels",
}


def load_embedded(name: str) -> LoadedModel:
    """One of ``EMBEDDED``, with its class names and preprocessing.

    Example:
        >>> load_embedded("scenes").preprocess.size
        (128, 128)
    """
    from safetensors import safe_open

    path = files("vitrail.models").joinpath("weights", f"{name}.safetensors")
    if not path.is_file():
        raise WeightsError(f"the weights of {name!r} are not in this installation: reinstall vitrail")
    with safe_open(str(path), framework="pt") as file:
        card = file.metadata()
        about: dict[str, Any] = {key: json.loads(card[key]) for key in ("architecture", "preprocess", "classes")}
        state = {key: file.get_tensor(key).float() for key in file.keys()}  # noqa: SIM118 - not a dict
    model = PlainViT(**about["architecture"])
    model.load_state_dict(state)
    view = about["preprocess"]
    size, mean, std = (tuple(view[key]) for key in ("size", "mean", "std"))
    prepare = Preprocess(size, mean, std, view.get("crop", 1.0), origin="the model's own card")
    return LoadedModel(model.eval(), prepare, tuple(about["classes"]), name)
