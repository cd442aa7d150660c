"""Load models by name: embedded models, models of the papers, and models of the supported libraries."""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch
from torch import nn

from vitrail.errors import GuessWarning, ModelError, VitrailError, WeightsError, require
from vitrail.models.catalogue import catalogue_entry, full_name
from vitrail.models.checkpoint import first_line, fit_classes, load_weights, read_weights
from vitrail.models.loaded import LoadedModel, describe, hugging_face_processor, processor_preprocess, sound_processor
from vitrail.models.model_names import unknown_name_error
from vitrail.models.plain_clip import PlainCLIP
from vitrail.models.plain_decoder import PlainDecoder
from vitrail.models.plain_detector import PlainDetector
from vitrail.models.plain_segmenter import PlainSegmenter
from vitrail.models.plain_sequences import PlainSpectrogramViT, PlainVideoViT
from vitrail.models.plain_vit import PlainViT
from vitrail.models.plain_vlm import PlainVLM
from vitrail.models.preprocess import Preprocess
from vitrail.models.sources import SOURCES, fitting_image_size, from_timm

EMBEDDED_MODELS = {
    "scenes": "ViT with a CLS token, trained on the embedded scenes",
    "scenes-tagged": "ViT with a CLS token, trained on scenes in which a corner tag gives the class away",
    "cifar10": "ViT with a CLS token, trained on CIFAR-10 (32×32 pixels)",
    "cifar10-distilled": "the same with a distillation token and a second head, as in DeiT",
    "scenes-clip": "dual encoder of scenes and captions that name shape, colour and place",
    "scenes-detr": "encoder–decoder detector of the objects of scenes",
    "scenes-seg": "semantic segmenter of scenes",
    "scenes-video": "ViT of moving scenes; the class is the movement of an object",
    "tones": "ViT of spectrograms; the class is a tone among several",
    "scenes-vlm": "vision-language decoder that answers questions about scenes",
    "lm-recall": "language model of short texts whose last word comes from known words of the text",
}
"""Models that are part of the package, with a description of each. The scripts in ``training/`` made them."""

EMBEDDED_KINDS: dict[str, type[nn.Module]] = {
    "classifier": PlainViT,
    "clip": PlainCLIP,
    "detector": PlainDetector,
    "segmenter": PlainSegmenter,
    "video": PlainVideoViT,
    "spectrogram": PlainSpectrogramViT,
    "vlm": PlainVLM,
    "decoder": PlainDecoder,
}
"""Modules of the embedded models, by the kind that a weights file states; a file that states none is a classifier."""

_WITHOUT_PREPROCESSING = ("video", "spectrogram", "decoder")

NO_NETWORK = "no network?"
"""Part of the error message if weights could not be downloaded."""


@torch.inference_mode(False)  # weights made under inference mode would have no gradients
def load(spec: str, weights: str | Path | None = None, pretrained: bool | None = None) -> LoadedModel:
    """Load a model by name: ``timm:NAME``, ``hf:NAME``, ``torchvision:NAME``, ``open_clip:NAME``, or a short name.

    Args:
        spec: Library and name; or the short name of a model of the papers, such as "vit-b16" or "deit-b", see
            `vitrail.models.CATALOGUE`; or an embedded model, which needs no network: "scenes",
            "scenes-tagged", "scenes-clip", "scenes-detr", "scenes-seg", "scenes-video", "scenes-vlm", "tones",
            "lm-recall", "cifar10" or "cifar10-distilled".
        weights: File with weights to use instead of the library's own: safetensors, or a torch file of tensors. Of timm
            models, its shapes decide the number of classes and the image size, so that a fitted head can be loaded. If
            they are of another image size than timm's, images are squashed to it: timm's crop is for its own size. For
            an embedded model, a file that ``training/`` wrote, which may have another architecture and other classes.
        pretrained: Whether to download the library's weights; by default yes, unless ``weights`` is given.

    Raises:
        ModelError: The name is unknown, or the model cannot be created.
        WeightsError: The weights file cannot be read or does not fit the model.

    Example:
        >>> load("keras:vit")
        Traceback (most recent call last):
        ...
        vitrail.errors.ModelError: unknown source 'keras' in 'keras:vit': use timm:NAME, hf:NAME, ...
    """
    if spec in EMBEDDED_MODELS:
        return load_embedded(spec, weights)
    spec = full_name(spec)
    library, colon, name = spec.partition(":")
    if not colon or library not in SOURCES:
        raise unknown_name_error(spec, tuple(EMBEDDED_MODELS))
    download = weights is None if pretrained is None else pretrained
    state = None if weights is None else read_weights(weights)
    try:
        module = SOURCES[library](name, download)
        size = fitting_image_size(module, state) if library == "timm" and state is not None else None
        if size is not None:
            module = from_timm(name, pretrained=False, img_size=size)
    except VitrailError:
        raise
    except Exception as error:
        hint = f" ({NO_NETWORK} pass a weights file, or use random weights)" if download else ""
        raise ModelError(f"cannot create {spec}: {first_line(error)}{hint}") from error
    if state is not None:
        if library == "timm":
            fit_classes(module, state)
        load_weights(module, state, str(weights))
    loaded, entry = describe(module.eval(), spec), catalogue_entry(spec)
    if size is not None and isinstance(loaded.preprocess, Preprocess):
        origin = "timm's mean and standard deviation, image size of the weights"
        loaded = replace(loaded, preprocess=replace(loaded.preprocess, squash=True, origin=origin, guessed=True))
    if library == "hf":
        loaded = _with_processor(loaded, name)
    if entry is None or not isinstance(loaded.preprocess, Preprocess):
        return loaded
    return replace(loaded, preprocess=replace(loaded.preprocess, mean=entry.mean, std=entry.std))


def _with_processor(loaded: LoadedModel, name: str) -> LoadedModel:
    """A Hugging Face model with the preprocessing of its checkpoint: of images, or a feature extractor of sound."""
    if loaded.preprocess is None:
        sound = str(getattr(loaded.module, "main_input_name", "")) in ("input_values", "input_features")
        return replace(loaded, preprocess=sound_processor(name)) if sound else loaded
    processor = hugging_face_processor(name)
    if processor is None:
        _warn_guess(loaded)
        return loaded
    return replace(loaded, preprocess=processor_preprocess(processor))


def _warn_guess(loaded: LoadedModel) -> None:
    origin = getattr(loaded.preprocess, "origin", "")
    warnings.warn(
        f"{loaded.name} has no image processor configuration: its preprocessing is a guess ({origin}); pass "
        "preprocess=vitrail.Preprocess(size, mean, std) to set it",
        GuessWarning,
        stacklevel=5,
    )


@torch.inference_mode(False)
def load_embedded(name: str, weights: str | Path | None = None) -> LoadedModel:
    """Load one of ``EMBEDDED_MODELS`` with its class names and preprocessing.

    Args:
        name: Its name.
        weights: A file of the same kind to use instead, such as one that ``training/`` wrote.

    Raises:
        WeightsError: The file is missing, or does not state architecture, preprocessing and classes.

    Example:
        >>> load_embedded("scenes").preprocess.size
        (128, 128)
    """
    from safetensors import SafetensorError, safe_open

    path = Path(weights or str(files("vitrail.models").joinpath("weights", f"{name}.safetensors")))
    if not path.is_file():
        advice = "reinstall vitrail" if weights is None else "pass the file that training/ wrote"
        raise WeightsError(f"the weights of {name!r} are missing ({path} does not exist): {advice}")
    try:
        with safe_open(str(path), framework="pt") as file:
            metadata = file.metadata() or {}
            config: dict[str, Any] = {k: json.loads(metadata[k]) for k in ("architecture", "classes")}
            state = {key: file.get_tensor(key).float() for key in file.keys()}  # noqa: SIM118 - not a dict
        kind = metadata.get("kind", "classifier")
        stored = json.loads(metadata["preprocess"]) if kind not in _WITHOUT_PREPROCESSING else None
        model = EMBEDDED_KINDS[kind](**config["architecture"])
        model.load_state_dict(state)
    except (SafetensorError, KeyError, ValueError, TypeError, RuntimeError) as error:
        raise WeightsError(
            f"{path} is not a file of an embedded model ({first_line(error)}): pass one that training/ wrote, or name "
            "the library of the model, as in timm:NAME"
        ) from error
    if kind == "decoder":
        return LoadedModel(model.eval(), name=name)
    if stored is None:
        frame = config["architecture"].get("size", 64)
        rendered = Preprocess((frame, frame), (0.5,) * 3, (0.5,) * 3, 1.0, origin="the range of rendered frames")
        return LoadedModel(model.eval(), rendered if kind == "video" else None, tuple(config["classes"]), name)
    size, mean, std = (tuple(stored[key]) for key in ("size", "mean", "std"))
    preprocess = Preprocess(size, mean, std, stored.get("crop", 1.0), origin="the metadata of the model's file")
    classes = None if kind == "clip" else tuple(config["classes"])  # of a dual encoder, these are its words
    return LoadedModel(model.eval(), preprocess, classes, name)


def weights_cached(spec: str) -> bool:
    """Whether the weights of a model of the papers are in the hub's local cache; True for any other model.

    Example:
        >>> weights_cached("scenes")
        True
    """
    entry = catalogue_entry(spec)
    if entry is None:
        return True
    hub: Any = require("huggingface_hub", "timm", "find cached weights")
    file_names = ("model.safetensors", "pytorch_model.bin")
    return any(isinstance(hub.try_to_load_from_cache(f"timm/{entry.timm}", file), str) for file in file_names)


@contextmanager
def offline() -> Iterator[None]:
    """Disable downloads from the Hugging Face hub within a ``with`` block; cached weights still load."""
    before = os.environ.get("HF_HUB_OFFLINE")
    os.environ["HF_HUB_OFFLINE"] = "1"
    constants: Any = sys.modules.get("huggingface_hub.constants")  # reads the variable once, when it is imported
    flag = getattr(constants, "HF_HUB_OFFLINE", None)
    try:
        if flag is not None:
            constants.HF_HUB_OFFLINE = True
        yield
    finally:
        constants = sys.modules.get("huggingface_hub.constants")
        if constants is not None:
            constants.HF_HUB_OFFLINE = flag if flag is not None else before in ("1", "true", "TRUE", "on", "ON")
        if before is None:
            del os.environ["HF_HUB_OFFLINE"]
        else:
            os.environ["HF_HUB_OFFLINE"] = before
