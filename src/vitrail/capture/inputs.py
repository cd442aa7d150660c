"""What is fed to a model, and what comes out."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from vitrail import fast
from vitrail.errors import InputError, ModelError, NotApplicableError, TargetError, VitrailError

#: The output of tokenizers that says which tokens they have added.
SPECIAL_TOKENS = "special_tokens_mask"
#: Where the scores of classes stand in the output objects of common libraries, best first.
LOGITS = ("logits", "logits_per_image")
EMBEDDINGS = ("image_embeds", "image_features", "pooler_output", "last_hidden_state", "text_embeds")


@dataclass(frozen=True)
class ModelInputs:
    """Arguments for one call of a model; tensors whose first axis is the batch can be cut along it.

    Attributes:
        args: Positional arguments.
        kwargs: Keyword arguments.
        embeddings: The model's embedding layer and the vectors that it returns in this call instead of its own, or
            None.
        special: Which tokens of a text the tokenizer has added, shape (b, n), or None where this is not known. It is
            not passed to the model.

    Example:
        >>> model_inputs = ModelInputs((torch.zeros(3, 2),))
        >>> model_inputs.batch, model_inputs.select(slice(0, 1)).args[0].shape
        (3, torch.Size([1, 2]))
    """

    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    embeddings: tuple[nn.Module, Tensor] | None = None
    special: Tensor | None = None

    @property
    def tensors(self) -> list[Tensor]:
        """Every tensor, positional ones first."""
        return [t for t in (*self.args, *self.kwargs.values()) if isinstance(t, Tensor)]

    @property
    def batch(self) -> int:
        """Number of inputs."""
        first = self.image if self.image is not None else next(iter(self.tensors), None)
        if first is None or first.dim() == 0:
            raise InputError("nothing to explain: give a tensor with a batch axis, images, or a dict of tensors")
        return int(first.shape[0])

    @property
    def image(self) -> Tensor | None:
        """The images, shape (b, channels, height, width), or None for text."""
        return next((t for t in self.tensors if t.dim() == 4 and t.is_floating_point()), None)

    @property
    def only_image(self) -> bool:
        """Whether the images, given as the first argument, are all there is."""
        return len(self.args) == 1 and not self.kwargs and self.embeddings is None and self.args[0] is self.image

    @property
    def words(self) -> Tensor | None:
        """The numbers of a text's tokens, shape (b, n), or None for images."""
        given = self.kwargs.get("input_ids", self.args[0] if self.args else None)
        text = isinstance(given, Tensor) and given.dim() == 2 and not given.is_floating_point()
        return given if text and self.image is None else None

    @property
    def patches(self) -> Tensor | None:
        """Flattened patches, shape (b, n, values), of models that take these instead of images, or None."""
        given = self.kwargs.get("pixel_values")
        flat = isinstance(given, Tensor) and given.dim() == 3 and given.is_floating_point()
        return given if flat and self.image is None and self.words is None else None

    @property
    def valid(self) -> Tensor | None:
        """Which tokens of a text are no padding, by its attention mask, shape (b, n); None where all are.

        A pass that is recorded cannot wait for the answer: it takes the mask, whatever it says.
        """
        mask = self.kwargs.get("attention_mask" if self.patches is None else "pixel_attention_mask")
        if self.image is not None or not isinstance(mask, Tensor) or mask.dim() != 2:
            return None
        valid = mask.bool()
        return valid if fast.recording() or not bool(valid.all()) else None

    def embedded(self, rows: Tensor, layer: nn.Module, vectors: Tensor) -> ModelInputs:
        """Some of the texts by index, any of them as often as it is named, with vectors in place of embedded words.

        The words themselves stay: models find padding, positions and the last token of a text by them.
        """
        batch = self.batch

        def index(value: Any) -> Any:
            return value[rows] if isinstance(value, Tensor) and value.dim() and value.shape[0] == batch else value

        return replace(self._changed(index), embeddings=(layer, vectors))

    def select(self, rows: slice) -> ModelInputs:
        """Some of the inputs."""
        batch = self.batch

        def cut(value: Any) -> Any:
            return value[rows] if isinstance(value, Tensor) and value.dim() and value.shape[0] == batch else value

        return self._changed(cut)

    def pick(self, rows: Tensor, images: Tensor) -> ModelInputs:
        """Some of the inputs by index, any of them as often as it is named, with other images or flattened patches."""
        batch, image = self.batch, self.patches if self.image is None else self.image

        def index(value: Any) -> Any:
            if value is image:
                return images
            return value[rows] if isinstance(value, Tensor) and value.dim() and value.shape[0] == batch else value

        return self._changed(index)

    def swap(self, old: Tensor, new: Tensor) -> ModelInputs:
        """The same with one tensor in place of another."""
        return self._changed(lambda value: new if value is old else value)

    def onto(self, model: nn.Module) -> ModelInputs:
        """The same on the model's device, floats in its precision; the model itself is never moved."""
        parameter = next((p for p in model.parameters() if p.is_floating_point()), None)
        return self if parameter is None else self.to(parameter.device, parameter.dtype)

    def to(self, device: torch.device, dtype: torch.dtype | None) -> ModelInputs:
        """The same on a device, floats in a precision."""

        def move(value: Any) -> Any:
            if not isinstance(value, Tensor):
                return value
            return value.detach().to(device=device, dtype=dtype if value.is_floating_point() else value.dtype)

        return self._changed(move)

    def _changed(self, change: Callable[[Any], Any]) -> ModelInputs:
        """The same with every argument changed; without vectors in place of embedded words."""
        args, kwargs = tuple(map(change, self.args)), {name: change(value) for name, value in self.kwargs.items()}
        return ModelInputs(args, kwargs, special=change(self.special))

    def into(self, model: nn.Module) -> Any:
        """Call the model."""
        if self.embeddings is None:
            return model(*self.args, **self.kwargs)
        layer, vectors = self.embeddings
        words, used = self.words, []

        def put(_: nn.Module, given: tuple[Any, ...], output: Any) -> Any:
            ids = given[0] if given else None
            same = (
                isinstance(ids, Tensor)
                and words is not None
                and ids.shape == words.shape
                and bool((ids == words).all())
            )
            turned = isinstance(ids, Tensor) and words is not None and not same and ids.shape == words.shape[::-1]
            if not (same or turned):
                return output
            used.append(True)
            own, rest = (output[0], output[1:]) if isinstance(output, tuple) else (output, None)
            new = vectors if same else vectors.transpose(0, 1)
            # A copy, as models change embeddings in place; the graph that starts at the words, if any, goes on.
            new = new + (own - own.detach()) if own.requires_grad else new.clone()
            return new if rest is None else (new, *rest)

        handle = layer.register_forward_hook(put)
        try:
            result = model(*self.args, **self.kwargs)
        finally:
            handle.remove()
        if not used:
            raise NotApplicableError(
                f"this method changes the vectors of words, and {type(model).__name__} does not embed them with "
                "get_input_embeddings()"
            )
        return result

    @property
    def shape(self) -> tuple[tuple[int, ...], ...]:
        """Shapes without the batch axis; two feeds of one shape meet the same structure."""
        return tuple(tuple(t.shape[1:]) for t in self.tensors)


def method_dtype(model: nn.Module) -> torch.dtype:
    """The precision methods compute in: the model's own, but at least single."""
    weight = next((p for p in model.parameters() if p.is_floating_point()), torch.zeros(()))
    return torch.promote_types(weight.dtype, torch.float32)


#: Words by which libraries complain about the size of an image.
_SIZE_WORDS = re.compile(
    r"size of tensor|must match|doesn't match model|match the model|input (image )?(height|width|size)|"
    r"shape|img_size|image_size|mat1 and mat2|expected .*channels|divisible",
    re.IGNORECASE,
)


def run_model(model: nn.Module, model_inputs: ModelInputs) -> Any:
    """Call the model; an error of its own becomes one line that says what failed and, where known, how to fix it."""
    try:
        return model_inputs.into(model)
    except (VitrailError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        raise _failure(model, model_inputs, error) from error


def _failure(model: nn.Module, model_inputs: ModelInputs, error: Exception) -> VitrailError:
    name = type(model).__name__
    lines = str(error).strip().splitlines()
    reason = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
    if "nference tensor" in reason:
        return ModelError(
            "the model's weights were made under torch.inference_mode(), so nothing can be differentiated through "
            "them: load the model outside of it"
        )
    if "meta" in reason and isinstance(error, NotImplementedError | RuntimeError):
        return ModelError(f"{name} has weights on the meta device: load them into memory first ({reason})")
    if isinstance(error, TypeError) and "argument" in reason:
        return InputError(
            f"{name}.forward() does not accept these inputs ({reason}): pass a dict with the arguments by name"
        )
    image = model_inputs.image
    if image is None or not _SIZE_WORDS.search(str(error)):
        return ModelError(f"{name} failed in its own forward pass: {reason}")
    weight = next((m.weight for m in model.modules() if isinstance(m, nn.Conv2d)), None)
    channels, height, width = image.shape[1:]
    if weight is not None and weight.shape[1] != channels and weight.dim() == 4:
        return InputError(
            f"the images have {channels} channels, {name} takes {weight.shape[1]}: "
            "convert them first (paths and PIL images are converted for you)"
        )
    return InputError(
        f"{name} does not accept images of {height}×{width} pixels ({reason}): resize them to the model's own "
        "size, or pass paths or PIL images, which are resized for you"
    )


def logits_of(output: Any) -> Tensor | None:
    """The class scores in a model's output, shape (b, C), or None if it has none.

    A bare tensor of two axes, the ``logits`` of an output object or dict, or the first such tensor of a tuple.

    Example:
        >>> logits_of((torch.zeros(2, 5), None)).shape
        torch.Size([2, 5])
        >>> logits_of({"last_hidden_state": torch.zeros(2, 7, 4)}) is None
        True
    """
    if isinstance(output, Tensor):
        return _as_scores(output)
    if isinstance(output, Mapping):
        found = next((output[name] for name in LOGITS if isinstance(output.get(name), Tensor)), None)
        if found is None and len(output) == 1 and not any(name in output for name in EMBEDDINGS):
            found = next(iter(output.values()))
        return _as_scores(found) if isinstance(found, Tensor) else None
    if isinstance(output, tuple | list):
        return next((s for s in map(logits_of, output) if s is not None), None)
    found = next((getattr(output, name) for name in LOGITS if isinstance(getattr(output, name, None), Tensor)), None)
    return None if found is None else _as_scores(found)


def _as_scores(tensor: Tensor) -> Tensor | None:
    if tensor.dim() == 1 and tensor.is_floating_point():
        return tensor[:, None]
    return tensor if tensor.dim() == 2 and tensor.is_floating_point() else None


def any_output(output: Any) -> Tensor:
    """Some differentiable tensor of the output with a batch axis: the scores if there are any, else an embedding."""
    scores = logits_of(output)
    if scores is not None:
        return scores
    if isinstance(output, Tensor):
        return output
    for name in EMBEDDINGS:
        value = output.get(name) if isinstance(output, Mapping) else getattr(output, name, None)
        if isinstance(value, Tensor):
            return value
    values = output.values() if isinstance(output, Mapping) else output if isinstance(output, tuple | list) else ()
    for value in values:
        if isinstance(value, Tensor) and value.is_floating_point():
            return value
    raise TargetError(f"the model returned {fields_of(output)}, in which no tensor of scores was found")


def fields_of(output: Any) -> str:
    """The output's type and the tensors in it, for messages."""
    if isinstance(output, Tensor):
        return f"a tensor of shape {tuple(output.shape)}"
    named: list[tuple[str, Any]] = []
    if isinstance(output, Mapping):
        named = [(str(k), v) for k, v in output.items()]
    elif isinstance(output, tuple | list):
        named = [(f"[{i}]", v) for i, v in enumerate(output)]
    tensors = ", ".join(f"{name} {tuple(v.shape)}" for name, v in named if isinstance(v, torch.Tensor))
    return f"a {type(output).__name__}" + (f" with {tensors}" if tensors else "")
