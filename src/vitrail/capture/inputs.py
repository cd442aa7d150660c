"""The arguments of one call of a model."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from vitrail import fast
from vitrail.capture.input_roles import SIGNALS, InputTensor, describe_tensors, explained_index
from vitrail.capture.offloaded import offloaded_to
from vitrail.capture.output_tensors import OutputReading
from vitrail.capture.signal_axes import SignalAxes
from vitrail.capture.tensor_tree import map_tensors, named_tensors, without_inference
from vitrail.errors import InputError, NotApplicableError

#: The output of tokenizers that says which tokens they have added.
SPECIAL_TOKENS = "special_tokens_mask"
#: The unit of a text that each token belongs to, such as a word or a passage, beside the inputs of a tokenizer.
TOKEN_UNITS = "token_units"  # noqa: S105


@dataclass(frozen=True)
class ModelInputs:
    """Arguments for one call of a model, and which of their tensors belong to which example.

    Tensors may lie in nested arguments: a dict, a tuple or a dataclass that the model takes as one argument.

    Attributes:
        args: Positional arguments.
        kwargs: Keyword arguments.
        embeddings: The model's embedding layer and the vectors that it returns in this call instead of its own, or
            None.
        special: Which tokens of a text the tokenizer has added, shape (b, n), or None where this is not known. It is
            not passed to the model.
        described: The description of every tensor, in order; None to describe them by their names and shapes.
        of: Name of the tensor that is explained; None for the first by its role.
        reading: Which part of the model's output holds the scores, and what turns these into probabilities.
        units: Axes of the maps whose unit is known, such as the seconds of a sound file.
        token_units: The unit of a text that each token belongs to, −1 for none, shape (b, n), where whole units are
            removed; None to remove tokens. It is not passed to the model.
        fixed_positions: Whether tokens keep their positions, since the target reads scores at some of them.

    Example:
        >>> model_inputs = ModelInputs((torch.zeros(3, 2),))
        >>> model_inputs.batch, model_inputs.select(slice(0, 1)).args[0].shape
        (3, torch.Size([1, 2]))
        >>> shared = ModelInputs((), {"pixel_values": torch.zeros(2, 3, 8, 8), "input_ids": torch.ones(5, 7).long()})
        >>> [tuple(t.shape) for t in shared.select(slice(0, 1)).tensors]
        [(1, 3, 8, 8), (5, 7)]
    """

    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    embeddings: tuple[nn.Module, Tensor] | None = None
    special: Tensor | None = None
    described: tuple[InputTensor, ...] | None = None
    of: str | None = None
    reading: OutputReading = field(default_factory=OutputReading)
    units: tuple[Any, ...] = ()
    token_units: Tensor | None = None
    fixed_positions: bool = False

    @cached_property
    def named(self) -> tuple[tuple[str, Tensor], ...]:
        """Every tensor with its name, positional ones first."""
        return (*named_tensors(self.args), *named_tensors(self.kwargs))

    @cached_property
    def tensors(self) -> list[Tensor]:
        """Every tensor, positional ones first."""
        return [tensor for _, tensor in self.named]

    @cached_property
    def description(self) -> tuple[InputTensor, ...]:
        """Role and axes of every tensor, and whether it is per example."""
        return describe_tensors(self.named, self.of) if self.described is None else self.described

    @cached_property
    def explained(self) -> int | None:
        """Index of the tensor that is explained."""
        usable = [one.role if one.per_example else "other" for one in self.description]
        return explained_index(usable, [one.name for one in self.description], self.of)

    def having(self, role: str) -> Tensor | None:
        """The tensor that is explained if it has a role, else None."""
        if self.explained is None or self.description[self.explained].role != role:
            return None
        return self.tensors[self.explained]

    def called(self, key: str) -> Tensor | None:
        """The tensor whose name ends with a key, in nested arguments as well, or None."""
        return next((t for one, t in zip(self.description, self.tensors, strict=True) if one.key == key), None)

    @property
    def batch(self) -> int:
        """Number of examples."""
        first = None if self.explained is None else self.tensors[self.explained]
        if first is None or first.dim() == 0:
            raise InputError("nothing to explain: give a tensor with a batch axis, images, or a dict of tensors")
        return int(first.shape[0])

    @property
    def what(self) -> str:
        """What is explained, as the end of a message about a method that needs something else."""
        if self.explained is None:
            return "nothing is explained here"
        one = self.description[self.explained]
        names = {
            "tokens": "a text", "patches": "flattened patches", "features": "a row of features", "series": "a series",
            "other": "numbers of an unknown kind",
        }  # fmt: skip
        what = names.get(one.role, f"a {one.role}")
        return f"what is explained here is {what} ({one.name}): use a method of another family, or of= or roles="

    @property
    def explained_name(self) -> str:
        """Name of the tensor that is explained; "the input" where it has none."""
        name = "" if self.explained is None else self.description[self.explained].name
        return "the input" if not name or name.startswith("[") else name

    @property
    def image(self) -> Tensor | None:
        """The images that are explained, shape (b, channels, height, width), or None."""
        return self.having("image")

    @property
    def axes(self) -> SignalAxes | None:
        """The axes of what is explained if it is an image, video, spectrogram, series or features, else None."""
        if self.explained is None or self.description[self.explained].role not in SIGNALS:
            return None
        found = self.description[self.explained].axes
        named = not any(name.startswith("axis ") for name in found)
        return SignalAxes.of(found) if named and self.numbers is not None else None

    @property
    def signal(self) -> Tensor | None:
        """What is explained where it lies on axes, as the model takes it, or None."""
        return None if self.axes is None else self.numbers

    @property
    def start(self) -> Tensor | None:
        """What is explained where a graph starts at it and its tokens can be measured: a signal or patches."""
        return self.patches if self.signal is None else self.signal

    @property
    def canvas(self) -> Tensor | None:
        """What is explained where it lies on axes, shape (b, channels, axes of the map …), or None."""
        return None if self.axes is None or self.numbers is None else self.axes.canvas(self.numbers)

    @property
    def map_size(self) -> tuple[int, ...] | None:
        """The size of a map of what is explained, or None where it lies on no axes."""
        return None if self.axes is None or self.numbers is None else self.axes.size(self.numbers)

    @property
    def only_image(self) -> bool:
        """Whether the images, given as the first argument, are all there is."""
        plain = self.embeddings is None and self.reading.output is None
        return plain and len(self.args) == 1 and not self.kwargs and self.args[0] is self.image

    @property
    def words(self) -> Tensor | None:
        """The numbers of a text's tokens, shape (b, n), or None where no text is explained."""
        return self.having("tokens")

    @property
    def patches(self) -> Tensor | None:
        """Flattened patches, shape (b, n, values), of models that take these instead of images, or None."""
        return self.having("patches")

    @property
    def numbers(self) -> Tensor | None:
        """What is explained where it is made of numbers, so that a graph can start at it; None for tokens."""
        found = None if self.explained is None else self.tensors[self.explained]
        return found if found is not None and found.is_floating_point() else None

    @property
    def valid(self) -> Tensor | None:
        """Which tokens of a text are no padding, by its attention mask, shape (b, n); None where all are.

        A pass that is recorded cannot wait for the answer: it takes the mask, whatever it says.
        """
        mask = self.called("attention_mask" if self.patches is None else "pixel_attention_mask")
        if self.signal is not None or mask is None or mask.dim() != 2 or mask.shape[0] != self.batch:
            return None
        if self.words is not None and mask.shape != self.words.shape:
            return None
        valid = mask.bool()
        return valid if fast.recording() or not bool(valid.all()) else None

    def unit_members(self, row: int) -> Tensor | None:
        """Which tokens of one text belong to each of its units, shape (units, n); None where tokens are the units."""
        if self.token_units is None:
            return None
        own = self.token_units[row]
        numbers = torch.unique(own[own >= 0])
        return torch.eq(own, numbers[:, None])

    def embedded(self, rows: Tensor, layer: nn.Module, vectors: Tensor) -> ModelInputs:
        """Some of the texts by index, any of them as often as it is named, with vectors in place of embedded words.

        The words themselves stay: models find padding, positions and the last token of a text by them.
        """
        return replace(self.indexed(rows), embeddings=(layer, vectors))

    def select(self, rows: slice) -> ModelInputs:
        """Some of the examples; what is shared by all of them stays whole."""
        return self._of_examples(rows)

    def indexed(self, rows: Tensor) -> ModelInputs:
        """Some of the examples by index, any of them as often as it is named."""
        return self._of_examples(rows)

    def pick(self, rows: Tensor, images: Tensor) -> ModelInputs:
        """Some of the examples by index, with other images, or whatever else is explained."""
        return self._of_examples(rows, images)

    def _of_examples(self, rows: slice | Tensor, explained: Tensor | None = None) -> ModelInputs:
        def cut(index: int, tensor: Tensor) -> Tensor:
            if explained is not None and index == self.explained:
                return explained
            if self.description[index].packed:
                return self._cut_packed(index, tensor, rows)
            return tensor[rows] if self.description[index].per_example else tensor

        special = None if self.special is None else self.special[rows]
        token_units = None if self.token_units is None else self.token_units[rows]
        return replace(self._each(cut), special=special, token_units=token_units)

    def _cut_packed(self, index: int, tensor: Tensor, rows: slice | Tensor) -> Tensor:
        """Patches of some examples, where those of all lie in one long row, image by image.

        Raises:
            NotApplicableError: It is not known which of them belong to which example.
        """
        name = self.description[index].name
        grid = self.called("video_grid_thw" if "video" in name else "image_grid_thw")
        batch = self.batch
        if grid is None or grid.shape != (batch, 3) or int(grid.prod(1).sum()) != len(tensor):
            whole = isinstance(rows, slice) and rows.indices(batch) == (0, batch, 1)
            if whole or (batch == 1 and (isinstance(rows, slice) or len(rows) == 1)):
                return tensor
            raise NotApplicableError(
                f"{name} holds the patches of all examples in one row, and which belong to which example is unknown "
                f"(image_grid_thw has no single row for each of {batch} examples): explain one example at a time, with "
                "an attention, gradient or relevance method"
            )
        parts = torch.split(tensor, grid.prod(1).tolist())
        chosen = list(range(batch))[rows] if isinstance(rows, slice) else rows.tolist()
        return torch.cat([parts[i] for i in chosen])

    def swap(self, old: Tensor, new: Tensor) -> ModelInputs:
        """The same with one tensor in place of another."""
        return replace(self, **self._mapped(lambda value: new if value is old else value), described=self.description)

    def onto(self, model: nn.Module) -> ModelInputs:
        """The same on the model's device, floats in its precision; the model itself is never moved."""
        parameter = fast.float_parameter(model)
        if parameter is None:
            return replace(self, **self._mapped(without_inference))
        device = offloaded_to(model) if parameter.is_meta else None
        return self.to(device or parameter.device, parameter.dtype)

    def to(self, device: torch.device, dtype: torch.dtype | None) -> ModelInputs:
        """The same on a device, floats in a precision."""

        def move(value: Tensor) -> Tensor:
            kind = dtype if value.is_floating_point() else value.dtype
            return without_inference(value).detach().to(device=device, dtype=kind)

        special = None if self.special is None else move(self.special)
        token_units = None if self.token_units is None else move(self.token_units)
        return replace(self, **self._mapped(move), special=special, token_units=token_units, embeddings=None)

    def changed(self, change: Callable[[Tensor], Tensor]) -> ModelInputs:
        """The same with every tensor changed; without vectors in place of embedded words."""
        return replace(self, **self._mapped(change), embeddings=None, described=self.description)

    def _each(self, change: Callable[[int, Tensor], Tensor]) -> ModelInputs:
        """The same with every tensor changed, given its index."""
        count = itertools.count()
        return self.changed(lambda tensor: change(next(count), tensor))

    def _mapped(self, change: Callable[[Tensor], Tensor]) -> dict[str, Any]:
        args = tuple(map_tensors(value, change) for value in self.args)
        return {"args": args, "kwargs": {name: map_tensors(value, change) for name, value in self.kwargs.items()}}

    def into(self, model: nn.Module) -> Any:
        """Call the model."""
        if self.embeddings is None:
            return self.reading.read(model(*self.args, **self.kwargs))
        layer, vectors = self.embeddings
        words, used = self.words, []

        def put(_: nn.Module, given: tuple[Any, ...], output: Any) -> Any:
            ids = given[0] if given else None
            same = (
                isinstance(ids, Tensor)
                and words is not None
                and ids.shape == words.shape
                and (ids is words or bool((ids == words).all()))
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

        # Encoders and decoders may hold copies of the layer that share its weight.
        shared = getattr(layer, "weight", None)
        layers = {layer, *(m for m in fast.modules_of(model) if isinstance(m, nn.Embedding) and m.weight is shared)}
        handles = [one.register_forward_hook(put) for one in layers]
        try:
            result = model(*self.args, **self.kwargs)
        finally:
            for handle in handles:
                handle.remove()
        if not used:
            raise NotApplicableError(
                f"this method changes the vectors of words, and no layer with the weight of "
                f"{type(model).__name__}.get_input_embeddings() was called with these tokens"
            )
        return self.reading.read(result)

    @property
    def shape(self) -> tuple[tuple[int, ...], ...]:
        """Shapes without the batch axis; two calls of one shape have the same structure."""
        return tuple(
            tuple(t.shape[1:] if one.per_example else t.shape)
            for one, t in zip(self.description, self.tensors, strict=True)
        )

    @property
    def signature(self) -> tuple[Any, ...]:
        """Names and roles of the tensors, and which of them is explained."""
        return (tuple((one.name, one.role, one.per_example) for one in self.description), self.explained)


def method_dtype(model: nn.Module) -> torch.dtype:
    """The precision methods compute in: the model's own, but at least single."""
    weight = fast.float_parameter(model)
    return torch.promote_types(torch.get_default_dtype() if weight is None else weight.dtype, torch.float32)
