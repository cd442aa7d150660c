"""A model as the page offers it: loaded by the operator, known to clients by a short id and nothing else."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from vitrail.capture.frozen import frozen, unwrap
from vitrail.capture.inputs import ModelInputs, logits_of
from vitrail.capture.structure import ModelStructure, read_structure
from vitrail.errors import InputError, ModelError, VitrailError
from vitrail.explain import DEFAULT
from vitrail.explanation import slug
from vitrail.methods import METHODS
from vitrail.models import LoadedModel
from vitrail.models.preprocess import Preprocess
from vitrail.text.tokens import Reading, batch, encode
from vitrail.text.windows import predict as predict_texts
from vitrail.web.costs import cheap, evaluations

if TYPE_CHECKING:
    from PIL.Image import Image

#: What a text model's structure is read from.
TRIAL = "a text to find out what the model is made of"

#: Shown first where the library's default was measured and does badly: on pairs of scenes GradToken marks the ground.
FIRST = {"scenes": "vtranm"}


@dataclass(frozen=True, eq=False)
class ServedModel:
    """A model and all that is told of it.

    Attributes:
        id: What clients call it.
        title: Its name for people, without folders of this machine.
        about: The model.
        reading: How texts are read, for text models.
        structure: What it is made of.
        class_count: Number of classes.
        source: Arguments of `vitrail.load` that make it again, as Python.
        reader: For text models, the name of the tokenizer, as Python.
    """

    id: str
    title: str
    about: LoadedModel
    reading: Reading | None
    structure: ModelStructure
    class_count: int
    source: str
    reader: str = ""

    @property
    def kind(self) -> str:
        """What it is for: "image" or "text"."""
        return "image" if self.reading is None else "text"

    @property
    def batch(self) -> int:
        """Pictures in a look: few where each takes its time, since others are let in between two looks."""
        device = next((p.device.type for p in self.about.module.parameters()), "cpu")
        return 8 if device == "cpu" else 32

    @property
    def preprocess(self) -> Preprocess:
        """How an image model wants its pictures."""
        assert isinstance(self.about.preprocess, Preprocess)
        return self.about.preprocess

    @property
    def as_it_is(self) -> Preprocess:
        """The same for a picture that has been cut and resized before."""
        return replace(self.preprocess, squash=True)

    def name_of(self, index: int) -> str:
        """A class in words."""
        names = self.about.classes
        return names[index].split(",")[0] if names and index < len(names) else f"class {index}"

    def seen(self, image: Image) -> np.ndarray[Any, Any]:
        """A picture as the model sees it: cut and resized, as bytes, shape (height, width, 3)."""
        return self.preprocess.picture(self.preprocess(image)[None])[0]  # type: ignore[no-any-return]

    def model_inputs(self, source: Any) -> ModelInputs:
        """A picture's bytes or a text, ready for the model."""
        model = unwrap(self.about.module)
        if self.reading is None:
            from PIL import Image as Images

            return ModelInputs((self.as_it_is(Images.fromarray(source))[None],)).onto(model)
        (one,) = encode([source], self.reading, model)
        if len(one.windows) > 1:
            raise InputError("the text is longer than the model takes at once: shorten it")
        return ModelInputs((), batch(one.windows, 0)).onto(model)

    def logits(self, source: Any) -> Tensor:
        """What the model says, shape (C,)."""
        model = unwrap(self.about.module)
        if self.reading is not None:
            return predict_texts([source], self.reading, model)[0].float()
        with frozen(model), torch.inference_mode():
            said = logits_of(self.model_inputs(source).into(model))
        assert said is not None
        return said[0].float().clone()

    @cached_property
    def card(self) -> dict[str, Any]:
        """What clients are told of the model."""
        layout = self.structure.layout
        blocks = [layer for layer in self.structure.layers if not layer.pool]
        works = [line for line in map(self._line, METHODS) if line["works"]]
        known = {line["name"] for line in works}
        first = FIRST.get(self.title, DEFAULT)
        default = first if first in known else next((line["name"] for line in works if line["class_specific"]), "")
        return {
            "id": self.id, "title": self.title, "kind": self.kind,
            "input": list(self.preprocess.size) if self.reading is None else None,
            "grid": list(layout.grid) if layout.grid and self.reading is None else None,
            "layers": len(blocks), "heads": [layer.heads for layer in blocks],
            "classes": None if self.about.classes is None else list(self.about.classes),
            "class_count": self.class_count, "default": default, "methods": [self._line(name) for name in METHODS],
        }  # fmt: skip

    def _line(self, name: str) -> dict[str, Any]:
        method = METHODS[name]
        reason: str | None = None
        options = method.options
        try:
            method.check(self.structure, options)
            if self.reading is not None and (against := method.reason_against("text")) is not None:
                reason = f"{name} does not apply to texts: {against}"
        except VitrailError as error:
            reason = str(error)
        return {
            "name": name, "title": method.title, "family": method.family, "class_specific": method.class_specific,
            "signed": False if method.derive else method.is_signed(options), "cheap": cheap(name, options, self.structure),  # noqa: E501
            "works": reason is None, "reason": reason, "forwards": 1 + evaluations(name, options, self.structure),
        }  # fmt: skip


def serve_model(
    about: LoadedModel, spec: str, weights: str = "pretrained", tokenizer: Any = None, taken: Sequence[str] = ()
) -> ServedModel:
    """A loaded model, looked into once so that every request can be checked before it costs anything.

    Args:
        about: The model.
        spec: What the operator called it; folders in it are not shown to clients.
        weights: What the operator gave as weights.
        tokenizer: For text models, the fast tokenizer.
        taken: Ids that other models have.

    Raises:
        ModelError: The page cannot show this model.
    """
    title = _public(spec)
    if hasattr(about.module, "encode_text"):
        raise ModelError(f"{title} has no classes to choose from, so the page cannot show it: use vitrail explain")
    if tokenizer is None and not isinstance(about.preprocess, Preprocess):
        raise ModelError(f"how {title} wants its images is unknown, so the page cannot show it: use the Python API")
    about = replace(about, name=title)
    reading = None if tokenizer is None else Reading(tokenizer)
    trial = ServedModel("", title, about, reading, ModelStructure("", "", "plain", _nowhere(), 0, ()), 0, "")
    source: Any = TRIAL
    if reading is None:
        noise = np.random.default_rng(0)
        source = noise.integers(0, 256, (*trial.preprocess.size, 3), dtype=np.uint8)
    model_inputs = trial.model_inputs(source)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        structure = read_structure(unwrap(about.module), model_inputs)
        with frozen(unwrap(about.module)), torch.inference_mode():
            said = logits_of(model_inputs.into(unwrap(about.module)))
    if said is None:
        raise ModelError(f"{title} gives no class scores, so the page cannot show it: load a classifier")
    name = base = slug(title)
    count = 1
    while name in taken:
        count += 1
        name = f"{base}-{count}"
    return replace(
        trial, id=name, structure=structure, class_count=int(said.shape[1]), source=_source(title, weights),
        reader=repr(title.partition(":")[2]) if reading is not None else "",
    )  # fmt: skip


def _nowhere() -> Any:
    from vitrail.capture.layout import Layout

    return Layout()


def _public(spec: str) -> str:
    """A model's name without the folders of this machine.

    Example:
        >>> _public("hf:/srv/models/reviews"), _public("hf:google/vit-base-patch16-224"), _public("scenes")
        ('hf:reviews', 'hf:google/vit-base-patch16-224', 'scenes')
    """
    library, colon, name = spec.partition(":")
    path = PurePath(name)
    local = path.is_absolute() or name.startswith((".", "~")) or len(path.parts) > 2
    return f"{library}:{path.name}" if colon and local else spec


def _source(title: str, weights: str) -> str:
    """How to load a model again.

    Example:
        >>> _source("timm:vit_tiny_patch16_224", "/srv/weights/vit.safetensors")
        "'timm:vit_tiny_patch16_224', 'vit.safetensors'"
    """
    if weights == "pretrained":
        return repr(title)
    return f"{title!r}, pretrained=False" if weights == "random" else f"{title!r}, {PurePath(weights).name!r}"
