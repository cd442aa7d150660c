"""A model as the server offers it: loaded by the operator, known to clients by its id."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from vitrail.capture.frozen import frozen, unwrap
from vitrail.capture.inputs import ModelInputs
from vitrail.capture.layout import Layout
from vitrail.capture.model_structure import ModelStructure
from vitrail.capture.outputs import class_logits
from vitrail.capture.structure import read_structure
from vitrail.data.tones import HERTZ_PER_BIN, SECONDS_PER_FRAME
from vitrail.errors import InputError, ModelError, OptionError, VitrailError
from vitrail.inputs.user_inputs import to_model_inputs
from vitrail.methods import METHODS, Method
from vitrail.methods.cost import size_of
from vitrail.models import LoadedModel
from vitrail.models.preprocess import Preprocess
from vitrail.pipeline.request import DEFAULT, LANGUAGE_DEFAULT
from vitrail.pipeline.saved_files import slug
from vitrail.targets.binding import bind_targets
from vitrail.text.language_model import is_language_model, padded_inputs
from vitrail.text.prediction import predict_texts
from vitrail.text.prompt_tokens import encode_prompts
from vitrail.text.tokens import TokenizerSettings, encode_texts, pad_windows
from vitrail.web.model_copies import copy_for_checks, copy_modules
from vitrail.web.model_kind import (
    example_target,
    input_size,
    media_of,
    signal_tensor,
    suggested_prompts,
    target_kind,
)
from vitrail.web.references import paper_of
from vitrail.web.token_structure import QUESTION, read_question_structure, read_text_structure
from vitrail.web.worker import worker_index

if TYPE_CHECKING:
    from PIL.Image import Image

#: Rows and columns of a model whose patches are unknown.
DEFAULT_GRID = (14, 14)
#: The text that a text model's structure is read from.
EXAMPLE_TEXT = "an example text to read the structure of the model"
#: The same for the embedded language model, which knows few words.
RECALL_TEXT = "Anna has the key . Ben has the lamp . Anna has the"


@dataclass(frozen=True, eq=False)
class ServedModel:
    """A loaded model with what the server needs to know about it.

    Attributes:
        id: Its id in requests.
        title: Its display name, without local folders.
        copies: The model, and copies of it that share its weights, one for each thread that runs models.
        reading: How texts are tokenized, for text models.
        structure: The model's structure.
        class_count: Number of classes, or of labels of boxes and regions.
        load_arguments: Arguments of `vitrail.load` that load it, as Python code.
        tokenizer_name: For text models, the name of the tokenizer, as Python code.
        media: What it takes: "image", "video" or "sound"; texts count as "image".
        target_kind: What is explained: "class", "prompt", "box", "region" or "token".
        processor: For vision-language models, what turns an image and a question into the arguments of the model.
        image_grid: For vision-language models, rows and columns of the maps.
    """

    id: str
    title: str
    copies: tuple[LoadedModel, ...]
    reading: TokenizerSettings | None
    structure: ModelStructure
    class_count: int
    load_arguments: str
    tokenizer_name: str = ""
    media: str = "image"
    target_kind: str = "class"
    processor: Any = None
    image_grid: tuple[int, int] | None = None
    _check_copies: dict[int, LoadedModel | None] = field(default_factory=dict, init=False, repr=False)

    @property
    def loaded(self) -> LoadedModel:
        """The model for the calling thread."""
        return self.copies[min(worker_index(), len(self.copies) - 1)]

    def for_workers(self, count: int) -> ServedModel:
        """The same with a copy of the model for each thread that runs models."""
        return replace(self, copies=(self.copies[0], *(copy_modules(self.copies[0]) for _ in range(count - 1))))

    @cached_property
    def has_own_copies(self) -> bool:
        """Whether each thread has its own copy, so that a thread that pauses while it holds one blocks no other.

        Compiled models share a lock, see `vitrail.capture.frozen`.
        """
        modules = [loaded.module for loaded in self.copies]
        compiled = any(getattr(module, "_compiled_call_impl", None) is not None for module in modules[0].modules())
        return len(set(map(id, modules))) == len(modules) and not compiled and unwrap(modules[0]) is modules[0]

    def check_copy(self, raw_input: Any) -> LoadedModel | None:
        """A copy of the model for the checks of the calling thread, or None if it cannot be copied."""
        index = worker_index()
        if index not in self._check_copies:
            example = (
                raw_input if self.reading is None else self.example_text
            )  # a text may be longer than the model's input
            self._check_copies[index] = copy_for_checks(self.loaded, self.call(example)[1])
        return self._check_copies[index]

    @property
    def kind(self) -> str:
        """What it explains: "image" or "text"."""
        return "image" if self.reading is None else "text"

    @property
    def example_text(self) -> str:
        """A text that the model can read."""
        return RECALL_TEXT if self.title == "lm-recall" else EXAMPLE_TEXT

    @property
    def tokenizer(self) -> Any:
        """The tokenizer of a text model, or that of a vision-language model's processor."""
        return self.processor.tokenizer if self.reading is None else self.reading.tokenizer

    @property
    def plane(self) -> tuple[int, int]:
        """Rows and columns of the patches as the page shows them; of a spectrogram, frequency is upwards."""
        grid = self.image_grid or self.structure.layout.grid
        if grid is None or self.reading is not None:
            return DEFAULT_GRID
        return (grid[1], grid[0]) if self.media == "sound" else (grid[-2], grid[-1])

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of what is kept of an input: (height, width, 3), frames first for videos; (time, bins) for sound."""
        return input_size(self.loaded, self.media)

    @property
    def batch_size(self) -> int:
        """Images per forward pass; small on a CPU, since short steps of other clients run between two batches."""
        device = next((p.device.type for p in self.loaded.module.parameters()), "cpu")
        return 4 if device == "cpu" else 32

    @property
    def preprocess(self) -> Preprocess:
        """The preprocessing of an image model."""
        assert isinstance(self.loaded.preprocess, Preprocess)
        return self.loaded.preprocess

    @property
    def preprocess_resized(self) -> Preprocess:
        """The preprocessing of an image that is already cropped and resized."""
        return replace(self.preprocess, squash=True)

    def class_name(self, index: int) -> str:
        """The name of a class."""
        names = self.loaded.classes
        return names[index].split(",")[0] if names and index < len(names) else f"class {index}"

    def pixels(self, image: Image) -> np.ndarray[Any, Any]:
        """The image as the model receives it: cropped and resized, as bytes of shape (height, width, 3)."""
        return self.preprocess.denormalise(self.preprocess(image)[None])[0]  # type: ignore[no-any-return]

    def model_inputs(self, raw_input: Any) -> ModelInputs:
        """Convert the pixels of an image, or a text, to the model's inputs."""
        model = unwrap(self.loaded.module)
        if self.media != "image":
            return to_model_inputs(signal_tensor(raw_input, self.loaded), self.loaded)
        if self.reading is None:
            from PIL import Image as Images

            return ModelInputs((self.preprocess_resized(Images.fromarray(raw_input))[None],)).onto(model)
        if self.target_kind == "token":
            return ModelInputs((), padded_inputs(model, [encode_prompts(raw_input, self.reading)[0].ids], 0)).onto(
                model
            )
        (tokens,) = encode_texts([raw_input], self.reading, model)
        if len(tokens.windows) > 1:
            raise InputError("the text is longer than the model's input: shorten it")
        return ModelInputs((), pad_windows(tokens.windows, 0)).onto(model)

    def call(self, raw_input: Any) -> tuple[nn.Module, ModelInputs]:
        """The module that is called and its inputs; models of prompts get a text beside the image."""
        module, model_inputs = unwrap(self.loaded.module), self.model_inputs(raw_input)
        if self.target_kind != "prompt":
            return module, model_inputs
        target = example_target("prompt", module)
        loaded, model_inputs, _ = bind_targets(target, self.loaded, model_inputs)
        return unwrap(loaded.module), model_inputs

    def logits(self, raw_input: Any) -> Tensor:
        """Compute the logits, shape (C,)."""
        model = unwrap(self.loaded.module)
        if self.reading is not None:
            return predict_texts([raw_input], self.reading, model)[0].float()
        with frozen(model), torch.inference_mode():
            logits = class_logits(model, self.model_inputs(raw_input).into(model))
        assert logits is not None
        return logits[0].float().clone()

    def check_method(self, method: Method, options: Mapping[str, Any]) -> None:
        """Check that a method applies to the model."""
        if method.check_weights is not None and options.get("weights"):  # a client must not name files of the server
            raise OptionError(f"{method.name}: weights= names a file, which a server does not read; leave it out")
        method.check(self.structure, options, model=unwrap(self.loaded.module))
        if self.reading is not None and (reason := method.reason_against("text")) is not None:
            raise OptionError(f"{method.name} does not apply to texts: {reason}")

    @cached_property
    def parameters(self) -> int:
        """Number of parameters."""
        return sum(parameter.numel() for parameter in self.copies[0].module.parameters())

    @cached_property
    def info(self) -> dict[str, Any]:
        """The model as JSON."""
        is_image = self.media == "image" and self.reading is None
        is_placed = self.reading is None and bool(self.image_grid or self.structure.layout.grid)
        blocks = [layer for layer in self.structure.layers if not layer.pool]
        methods = [self._method_info(method) for method in METHODS.values()]
        applicable = {m["name"]: m for m in methods if m["works"]}
        default = LANGUAGE_DEFAULT if self.target_kind == "token" else DEFAULT
        if default.partition(":")[0] not in applicable:
            default = next((name for name, m in applicable.items() if m["class_specific"]), "")
        return {
            "id": self.id, "title": self.title, "kind": self.kind,
            "media": self.media, "targets": self.target_kind,
            "input": None if self.reading is not None else list(self._shown_size),
            "grid": list(self.plane) if is_placed else None,
            "frames": self.input_shape[0] if self.media == "video" else None,
            "times": self._times,
            "axes": None if self.media != "sound" else {
                "seconds": self.input_shape[0] * SECONDS_PER_FRAME, "hertz": self.input_shape[1] * HERTZ_PER_BIN
            },
            "prompts": self._suggestions,
            "layers": len(blocks), "heads": [layer.heads for layer in blocks],
            "classes": None if self.loaded.classes is None else list(self.loaded.classes),
            "class_count": self.class_count, "default": default, "methods": methods,
            "attention": self.target_kind != "token"
            and (self.reading is not None or (is_image and self.structure.kind != "streams")),
        }  # fmt: skip

    @property
    def _times(self) -> int | None:
        """Number of patches of a video along time; without known patches that of the cells that are removed."""
        if self.media != "video":
            return None
        grid = self.structure.layout.grid
        return min(DEFAULT_GRID[0], self.input_shape[0]) if grid is None else grid[0]

    @property
    def _suggestions(self) -> list[str]:
        """Prompts or questions that are offered for any image."""
        if self.processor is not None:
            return [QUESTION]
        return list(suggested_prompts(self.loaded.module)) if self.target_kind == "prompt" else []

    @property
    def _shown_size(self) -> tuple[int, int]:
        """Height and width of the image that the page shows."""
        shape = self.input_shape
        return (shape[1], shape[0]) if self.media == "sound" else (shape[-3], shape[-2])

    def _method_info(self, method: Method) -> dict[str, Any]:
        reason: str | None = None
        try:
            self.check_method(method, method.options)
        except VitrailError as error:
            reason = str(error)
        evaluations = method.cost(method.options, size_of(self.structure), 1).evaluations
        return {
            "name": method.name, "title": method.title, "family": method.family, "summary": method.summary,
            "paper": paper_of(method.cite), "contrasts": takes_contrast(method.name),
            "class_specific": method.class_specific,
            "signed": False if method.derive else method.is_signed(method.options), "shared_pass": evaluations == 0,
            "works": reason is None, "reason": reason, "forwards": 1 + evaluations,
        }  # fmt: skip


def takes_contrast(name: str) -> bool:
    """Whether a method explains a function of the output, such as the difference of two logits.

    Trained explainers have outputs for single classes only.
    """
    return name not in METHODS or METHODS[name].family != "trained"


def serve_model(
    loaded: LoadedModel, spec: str, weights: str = "pretrained", tokenizer: Any = None, used_ids: Sequence[str] = (),
    processor: Any = None,
) -> ServedModel:  # fmt: skip
    """Prepare a loaded model for serving: read its structure once, so that requests can be checked before they run.

    Args:
        loaded: The model.
        spec: The name the operator gave; local folders in it are not shown to clients.
        weights: The weights the operator gave.
        tokenizer: For text models, the fast tokenizer.
        used_ids: Ids of the other models.
        processor: For vision-language models, what turns images and questions into the arguments of the model.
    """
    title = _public_name(spec)
    media = media_of(loaded) if tokenizer is None else "image"
    if tokenizer is None and media != "sound" and not isinstance(loaded.preprocess, Preprocess):
        raise ModelError(
            f"the preprocessing of {title} is unknown, so the page does not support it: use the Python API"
        )
    loaded = replace(loaded, name=title)
    reading = None if tokenizer is None else TokenizerSettings(tokenizer)
    unread = ModelStructure("", "", "plain", Layout(), 0, ())
    served = ServedModel("", title, (loaded,), reading, unread, 0, "", media=media, processor=processor)
    if processor is not None or (tokenizer is not None and is_language_model(loaded.module)):
        served = replace(served, target_kind="token")
    example: Any = served.example_text
    if reading is None:
        example = np.random.default_rng(0).integers(0, 256, served.input_shape, dtype=np.uint8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if served.target_kind == "token":
            return _with_id(_with_vocabulary(served, example), title, weights, used_ids)
        model_inputs = served.model_inputs(example)
        kind, labels = target_kind(loaded, model_inputs)
        target = example_target(kind, loaded.module)
        if target is None:
            structure = read_structure(unwrap(loaded.module), model_inputs)
        else:
            called, model_inputs, bound = bind_targets(target, loaded, model_inputs)
            structure = read_structure(unwrap(called.module), model_inputs, None, bound)
    served = replace(served, structure=structure, class_count=labels, target_kind=kind)
    return _with_id(served, title, weights, used_ids)


def _with_id(served: ServedModel, title: str, weights: str, used_ids: Sequence[str]) -> ServedModel:
    """The same with an id that no other model has, and the code that loads it."""
    model_id = base = slug(title)
    count = 1
    while model_id in used_ids:
        count += 1
        model_id = f"{base}-{count}"
    return replace(
        served, id=model_id, load_arguments=_load_arguments(title, weights),
        tokenizer_name=repr(title.partition(":")[2]) if served.reading is not None else "",
    )  # fmt: skip


def _with_vocabulary(served: ServedModel, example: Any) -> ServedModel:
    """A model that writes texts, with its structure and the size of its vocabulary."""
    if served.processor is None:
        structure, tokens = read_text_structure(served.loaded, served.model_inputs(example), served.tokenizer)
        return replace(served, structure=structure, class_count=tokens)
    structure, tokens, grid = read_question_structure(served.loaded, served.processor, example)
    return replace(served, structure=structure, class_count=tokens, image_grid=grid)


def _public_name(spec: str) -> str:
    """The name of a model without local folders.

    Example:
        >>> _public_name("hf:/srv/models/reviews"), _public_name("hf:google/vit-base-patch16-224")
        ('hf:reviews', 'hf:google/vit-base-patch16-224')
        >>> _public_name("scenes")
        'scenes'
    """
    library, colon, name = spec.partition(":")
    path = PurePath(name)
    local = path.is_absolute() or name.startswith((".", "~")) or len(path.parts) > 2
    return f"{library}:{path.name}" if colon and local else spec


def _load_arguments(title: str, weights: str) -> str:
    """The arguments of `vitrail.load` for a model, as Python code.

    Example:
        >>> _load_arguments("timm:vit_tiny_patch16_224", "/srv/weights/vit.safetensors")
        "'timm:vit_tiny_patch16_224', 'vit.safetensors'"
    """
    if weights == "pretrained":
        return repr(title)
    return f"{title!r}, pretrained=False" if weights == "random" else f"{title!r}, {PurePath(weights).name!r}"
