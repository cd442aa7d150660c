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
from torch import Tensor

from vitrail.capture.forward import forward_pass
from vitrail.capture.frozen import frozen, unwrap
from vitrail.capture.inputs import ModelInputs
from vitrail.capture.layout import Layout
from vitrail.capture.model_structure import UNCHAINED_KINDS, ModelStructure
from vitrail.capture.outputs import class_logits
from vitrail.capture.structure import read_structure
from vitrail.capture.trace import ALL
from vitrail.errors import InputError, ModelError, NotApplicableError, OptionError, VitrailError
from vitrail.methods import METHODS, Method
from vitrail.methods.cost import size_of
from vitrail.models import LoadedModel
from vitrail.models.preprocess import Preprocess
from vitrail.pipeline.explain import DEFAULT
from vitrail.pipeline.saved_files import slug
from vitrail.text.prediction import predict_texts
from vitrail.text.tokens import TokenizerSettings, encode_texts, pad_windows
from vitrail.viz.map_encoding import encode_map
from vitrail.web.model_copies import copy_for_checks, copy_modules
from vitrail.web.references import paper_of
from vitrail.web.worker import worker_index

if TYPE_CHECKING:
    from PIL.Image import Image

#: The text that a text model's structure is read from.
EXAMPLE_TEXT = "an example text to read the structure of the model"


@dataclass(frozen=True, eq=False)
class ServedModel:
    """A loaded model with what the server needs to know about it.

    Attributes:
        id: Its id in requests.
        title: Its display name, without local folders.
        copies: The model, and copies of it that share its weights, one for each thread that runs models.
        reading: How texts are tokenized, for text models.
        structure: The model's structure.
        class_count: Number of classes.
        load_arguments: Arguments of `vitrail.load` that load it, as Python code.
        tokenizer_name: For text models, the name of the tokenizer, as Python code.
    """

    id: str
    title: str
    copies: tuple[LoadedModel, ...]
    reading: TokenizerSettings | None
    structure: ModelStructure
    class_count: int
    load_arguments: str
    tokenizer_name: str = ""
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
            example = raw_input if self.reading is None else EXAMPLE_TEXT  # a text may be longer than the model's input
            self._check_copies[index] = copy_for_checks(self.loaded, self.model_inputs(example).tensors[0])
        return self._check_copies[index]

    @property
    def kind(self) -> str:
        """What it explains: "image" or "text"."""
        return "image" if self.reading is None else "text"

    @property
    def batch_size(self) -> int:
        """Images per forward pass; small on a CPU, since short steps of other clients run between two batches."""
        device = next((p.device.type for p in self.loaded.module.parameters()), "cpu")
        return 8 if device == "cpu" else 32

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
        if self.reading is None:
            from PIL import Image as Images

            return ModelInputs((self.preprocess_resized(Images.fromarray(raw_input))[None],)).onto(model)
        (tokens,) = encode_texts([raw_input], self.reading, model)
        if len(tokens.windows) > 1:
            raise InputError("the text is longer than the model's input: shorten it")
        return ModelInputs((), pad_windows(tokens.windows, 0)).onto(model)

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
        """Check that a method applies to the model.

        Raises:
            VitrailError: It does not; the message says why.
        """
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
        layout = self.structure.layout
        blocks = [layer for layer in self.structure.layers if not layer.pool]
        methods = [self._method_info(method) for method in METHODS.values()]
        applicable = {m["name"]: m for m in methods if m["works"]}
        default = DEFAULT
        if default not in applicable:
            default = next((name for name, m in applicable.items() if m["class_specific"]), "")
        return {
            "id": self.id, "title": self.title, "kind": self.kind,
            "input": list(self.preprocess.size) if self.reading is None else None,
            "grid": list(layout.grid) if layout.grid and self.reading is None else None,
            "layers": len(blocks), "heads": [layer.heads for layer in blocks],
            "classes": None if self.loaded.classes is None else list(self.loaded.classes),
            "class_count": self.class_count, "default": default, "methods": methods,
        }  # fmt: skip

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
    loaded: LoadedModel, spec: str, weights: str = "pretrained", tokenizer: Any = None, used_ids: Sequence[str] = ()
) -> ServedModel:
    """Prepare a loaded model for serving: read its structure once, so that requests can be checked before they run.

    Args:
        loaded: The model.
        spec: The name the operator gave; local folders in it are not shown to clients.
        weights: The weights the operator gave.
        tokenizer: For text models, the fast tokenizer.
        used_ids: Ids of the other models.

    Raises:
        ModelError: The page does not support this model.
    """
    title = _public_name(spec)
    if hasattr(loaded.module, "encode_text"):
        raise ModelError(f"{title} has no classes, so the page does not support it: use vitrail explain")
    if tokenizer is None and not isinstance(loaded.preprocess, Preprocess):
        raise ModelError(
            f"the preprocessing of {title} is unknown, so the page does not support it: use the Python API"
        )
    loaded = replace(loaded, name=title)
    reading = None if tokenizer is None else TokenizerSettings(tokenizer)
    unread = ModelStructure("", "", "plain", Layout(), 0, ())
    served = ServedModel("", title, (loaded,), reading, unread, 0, "")
    example: Any = EXAMPLE_TEXT
    if reading is None:
        example = np.random.default_rng(0).integers(0, 256, (*served.preprocess.size, 3), dtype=np.uint8)
    model_inputs = served.model_inputs(example)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        structure = read_structure(unwrap(loaded.module), model_inputs)
        with frozen(unwrap(loaded.module)), torch.inference_mode():
            logits = class_logits(loaded.module, model_inputs.into(unwrap(loaded.module)))
    if logits is None:
        raise ModelError(f"{title} returns no class scores, so the page does not support it: load a classifier")
    model_id = base = slug(title)
    count = 1
    while model_id in used_ids:
        count += 1
        model_id = f"{base}-{count}"
    return replace(
        served, id=model_id, structure=structure, class_count=int(logits.shape[1]),
        load_arguments=_load_arguments(title, weights),
        tokenizer_name=repr(title.partition(":")[2]) if reading is not None else "",
    )  # fmt: skip


def attention_from(served: ServedModel, raw_input: Any, token: int) -> dict[str, Any]:
    """Compute the attention from one patch to all patches, or from one token of a text to all its tokens.

    Args:
        served: The model.
        raw_input: The pixels of the image, shape (height, width, 3), or the text.
        token: Index of the patch, row by row, or of the token, special tokens included.

    Returns:
        ``layers``, each with one map per head; ``grid`` or ``tokens`` describe the cells of a map. Attention to the
        ``prefix`` tokens before the patches is left out, so a map of a patch may sum to less than one.

    Raises:
        NotApplicableError: The model has no attention between all patches.
        InputError: The token does not exist.
    """
    if served.structure.kind != "plain":
        raise NotApplicableError(
            f"{served.title} {UNCHAINED_KINDS[served.structure.kind]}: attention of a patch is available for "
            "plain transformers only"
        )
    model, model_inputs = unwrap(served.loaded.module), served.model_inputs(raw_input)
    structure = read_structure(model, model_inputs)
    is_text = served.reading is not None
    prefix = 0 if is_text else structure.layout.prefix or 0
    count = structure.tokens - prefix
    if not 0 <= token < count:
        raise InputError(f"token {token} does not exist: give 0 to {count - 1}")
    grid = None if is_text else structure.layout.grid
    rows, columns = grid or (1, count)
    with forward_pass(model, model_inputs, structure, [{"A": ALL}]) as one, torch.no_grad():
        blocks = [block.A for block in one.trace().blocks if not block.pool]
    layers = [
        {"heads": [encode_map(head[prefix + token, prefix:].view(rows, columns), signed=False) for head in A[0]]}
        for A in blocks
    ]
    tokens: list[str] | None = None
    if served.reading is not None:
        tokens = list(encode_texts([raw_input], served.reading, model)[0].tokens)
    return {"grid": list(grid) if grid else None, "tokens": tokens, "layers": layers, "prefix": prefix}


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
