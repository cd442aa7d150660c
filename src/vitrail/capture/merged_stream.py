"""The stream of image tokens and words that the decoder of a vision-language model reads, found by perturbation.

Noise on the image changes some positions of the stream, noise on the vectors of words the others. The first tensor of a
pass in which both are seen and no position is changed by both is the stream, before any token was mixed with another.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from vitrail.capture.attention import AttentionMode
from vitrail.capture.frozen import frozen
from vitrail.capture.inputs import ModelInputs
from vitrail.capture.model_call import run_model
from vitrail.capture.output_tensors import any_output
from vitrail.capture.verify import direction, owners
from vitrail.errors import InputError, ModelError, NotApplicableError, VitrailError

#: Name of the merged vectors among the arguments of `StreamModel`.
STREAM = "stream"
#: Roles of tensors that hold images.
_IMAGES = ("image", "video", "patches")
#: Words by which models complain about the number of image tokens.
_COUNT = re.compile(r"image.*tokens?|tokens.*image", re.IGNORECASE)
#: Numbers by which two vectors are told apart; whole vectors of all layers would fill the memory.
_NUMBERS = 8
#: Numbers of channels of images.
_CHANNELS = (1, 3, 4)


@dataclass(frozen=True, eq=False)
class StreamPlace:
    """Where a model receives its merged stream.

    Attributes:
        name: Name of the module.
        argument: Position or name of the argument.
        call: Which of the module's calls it is.
    """

    name: str
    argument: int | str
    call: int


@dataclass(frozen=True, eq=False)
class MergedStream:
    """Image tokens and words in the order in which a decoder reads them.

    Attributes:
        place: Where the model receives them.
        vectors: The vectors, shape (b, n, d).
        image: Which positions depend on the image alone, shape (b, n).
        words: Which positions are words, shape (b, n); in their order they are the words of the call.
        images: Names of the tensors that hold the images.
        owners: For each image tensor of each example, the image token of each pixel as its index among the image tokens
            of the example, −1 for none; None where image tokens belong to no pixels of their own.
    """

    place: StreamPlace
    vectors: Tensor
    image: Tensor
    words: Tensor
    images: tuple[str, ...]
    owners: tuple[Tensor, ...] | None


class StreamModel(nn.Module):
    """A vision-language model as a function of its merged stream."""

    def __init__(self, model: nn.Module, place: StreamPlace) -> None:
        super().__init__()
        self.model, self.place = model, place
        self.config = getattr(model, "config", None)

    def forward(self, **given: Any) -> Any:
        """Call the model with other vectors in its stream; ``stream`` has shape (b, n, d)."""
        stream = given.pop(STREAM)
        with _replaced(self.model, self.place, stream):
            return self.model(**given)


@contextmanager
def _replaced(model: nn.Module, place: StreamPlace, stream: Tensor) -> Iterator[None]:
    """Pass other vectors to the module that reads the stream."""
    calls = 0

    def put(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        nonlocal calls
        calls += 1
        if calls - 1 != place.call:
            return args, kwargs
        if isinstance(place.argument, str):
            return args, {**kwargs, place.argument: stream}
        return (*args[: place.argument], stream, *args[place.argument + 1 :]), kwargs

    handle = model.get_submodule(place.name).register_forward_pre_hook(put, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()


def image_names(model_inputs: ModelInputs) -> tuple[str, ...]:
    """Names of the keyword arguments that hold images, where a call has words as well; empty for other calls."""
    described = zip(model_inputs.description, model_inputs.named, strict=True)
    images = tuple(
        one.name
        for one, (_, tensor) in described
        if tensor.is_floating_point() and one.name in model_inputs.kwargs
        and (one.role in _IMAGES or one.key.startswith("pixel_values"))
    )  # fmt: skip
    return images if model_inputs.called("input_ids") is not None else ()


def find_merged_stream(model: nn.Module, model_inputs: ModelInputs) -> MergedStream:
    """Find the stream of image tokens and words of a call, and confirm it by perturbing both.

    Raises:
        NotApplicableError: There is no such stream, with the reason.
    """
    names, ids = image_names(model_inputs), model_inputs.called("input_ids")
    if not names or ids is None:
        raise NotApplicableError("the call has no image and words: pass what the processor returned, as a dict")
    noisy = model_inputs
    for name in names:
        tensor = model_inputs.kwargs[name]
        noisy = noisy.swap(tensor, tensor + _noise(tensor))
    with frozen(model), torch.no_grad():
        try:
            _, base = _entering(model, model_inputs)
        except ModelError as error:
            if _COUNT.search(str(error)) is None:
                raise
            raise InputError(
                f"the image tokens in the text do not fit the image ({error}): pass what the processor returned for "
                "this image and this text, unchanged"
            ) from error
        expected, by_image = _entering(model, noisy)
        _, by_words = _entering(model, model_inputs, ids)
    for key, marks in base.items():
        if key not in by_image or key not in by_words or by_image[key].shape != marks.shape:
            continue
        moved, worded = _changed(marks, by_image[key]), _changed(marks, by_words[key])
        if not _is_stream(moved, worded, ids):
            continue
        place = StreamPlace(*key)
        if _decides(model, model_inputs, place, _vectors_at(model, noisy, place), expected):
            vectors = _vectors_at(model, model_inputs, place)
            found = MergedStream(place, vectors, moved, worded, names, None)
            return replace(found, owners=_owners(model, model_inputs, found))
    raise NotApplicableError(
        f"{type(model).__name__} has no stream in which image tokens and words stand side by side: noise on the image "
        "and noise on the words change the same positions, or attention crosses from one to the other; explain one of "
        f"them by of='{names[0]}' or of='input_ids'"
    )


def _noise(tensor: Tensor) -> Tensor:
    drawn = torch.randn(tensor.shape, generator=torch.Generator().manual_seed(0)).to(tensor)
    return drawn * tensor.float().std().clamp_min(0.1).to(tensor)


Key = tuple[str, int | str, int]


def _run(model: nn.Module, model_inputs: ModelInputs) -> Any:
    """The output of a pass with the same random numbers each time: some models draw the order of their patches."""
    device = model_inputs.tensors[0].device
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(0)
        return run_model(model, model_inputs)


def _decides(
    model: nn.Module, model_inputs: ModelInputs, place: StreamPlace, vectors: Tensor, expected: Tensor
) -> bool:
    """Whether the vectors of another image at a place give the output of that image."""
    with frozen(model), torch.no_grad(), _replaced(model, place, vectors):
        return _close(_scores(_run(model, model_inputs)), expected)


def _scores(output: Any) -> Tensor:
    """The logits of an output, which may hold features of the image too."""
    logits = output.get("logits") if isinstance(output, Mapping) else getattr(output, "logits", None)
    return logits if isinstance(logits, Tensor) else any_output(output)


def _close(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape:
        return False
    return bool((one.float() - other.float()).abs().max() <= 1e-3 * other.float().abs().max())


def _entering(
    model: nn.Module, model_inputs: ModelInputs, ids: Tensor | None = None
) -> tuple[Tensor, dict[Key, Tensor]]:
    """The output, and a few numbers for each position of every tensor of shape (b, n, d) that enters a module.

    With ``ids``, those of noisy words.
    """
    batch, found, calls, handles = model_inputs.batch, dict[Key, Tensor](), dict[str, int](), []

    def note(name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        call = calls[name] = calls.get(name, -1) + 1
        given: list[tuple[int | str, Any]] = [*enumerate(args), *kwargs.items()]
        for argument, value in given:
            if isinstance(value, Tensor) and value.is_floating_point() and value.dim() == 3 and len(value) == batch:
                found[name, argument, call] = (value @ direction(value.new_empty(value.shape[-1], _NUMBERS))).float()

    def watch(name: str) -> Any:
        return lambda _, args, kwargs: note(name, args, kwargs)

    def add_noise(_: nn.Module, given: tuple[Any, ...], output: Any) -> Any:
        same = bool(given) and isinstance(given[0], Tensor) and given[0].shape == ids.shape  # type: ignore[union-attr]
        return output + _noise(output) if same and isinstance(output, Tensor) else output

    for name, module in model.named_modules():
        if name:
            handles.append(module.register_forward_pre_hook(watch(name), with_kwargs=True))
    if ids is not None:
        layer = _word_layer(model)
        handles.append(layer.register_forward_hook(add_noise))
    try:
        output = _scores(_run(model, model_inputs))
    finally:
        for handle in handles:
            handle.remove()
    return output, found


def _word_layer(model: nn.Module) -> nn.Module:
    find = getattr(model, "get_input_embeddings", None)
    try:
        layer = None if find is None else find()
    except (NotImplementedError, AttributeError):
        layer = None
    if not isinstance(layer, nn.Module):
        raise NotApplicableError(
            f"{type(model).__name__} does not name the layer that makes the vectors of words: it needs "
            "get_input_embeddings()"
        )
    return layer


def _changed(base: Tensor, other: Tensor) -> Tensor:
    """Positions whose vectors differ, shape (b, n), by a few numbers for each."""
    return (base - other).abs().amax(-1) > 1e-6 * base.abs().amax().clamp_min(1e-12)


def _vectors_at(model: nn.Module, model_inputs: ModelInputs, place: StreamPlace) -> Tensor:
    """The vectors that enter a module."""
    with frozen(model), torch.no_grad(), _watched(model, place) as seen:
        _run(model, model_inputs)
    return seen[0].detach().clone()


@contextmanager
def _watched(model: nn.Module, place: StreamPlace) -> Iterator[list[Tensor]]:
    """Keep the vectors that enter a module."""
    seen: list[Tensor] = []
    calls = 0

    def note(_: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        nonlocal calls
        calls += 1
        if calls - 1 == place.call:
            seen.append(kwargs[place.argument] if isinstance(place.argument, str) else args[place.argument])

    handle = model.get_submodule(place.name).register_forward_pre_hook(note, with_kwargs=True)
    try:
        yield seen
    finally:
        handle.remove()


def _is_stream(image: Tensor, words: Tensor, ids: Tensor) -> bool:
    """Whether positions that the image changes and positions of words are apart, and the words are all there."""
    if bool((image & words).any()) or not bool(image.any(1).all()) or not bool(words.any(1).all()):
        return False
    if image.shape == ids.shape:
        return True  # image tokens stand in place of words of the call
    return bool((words.sum(1) == ids.shape[1]).all())


def _owners(model: nn.Module, model_inputs: ModelInputs, stream: MergedStream) -> tuple[Tensor, ...] | None:
    """The image token of each pixel, by gradients past all attention; one entry for each example.

    None where there are images in several tensors, or image tokens without pixels of their own.
    """
    if len(stream.images) != 1:
        return None
    pixels = model_inputs.kwargs[stream.images[0]]
    together = len(pixels) == model_inputs.batch and pixels.dim() >= 4
    rows = [slice(0, model_inputs.batch)] if together else [slice(i, i + 1) for i in range(model_inputs.batch)]
    found: list[Tensor] = []
    for some in rows:
        try:
            own = _owners_of(model, model_inputs.select(some), stream, stream.image[some])
        except VitrailError:
            return None
        if own is None:
            return None
        found += own
    return tuple(found)


def _owners_of(
    model: nn.Module, model_inputs: ModelInputs, stream: MergedStream, positions: Tensor
) -> list[Tensor] | None:
    """The image token of each pixel of some examples, whose images are measured as one."""
    pixels = model_inputs.kwargs[stream.images[0]]
    leaf, restored = _as_leaf(pixels)
    mode = AttentionMode({}, model_inputs.batch, keep_output=True, masks=False, cut_outputs=True)
    with frozen(model), torch.enable_grad(), _watched(model, stream.place) as seen, mode:
        _run(model, model_inputs.swap(pixels, restored))
    if not seen or not seen[0].requires_grad:
        return None
    tokens = seen[0][positions.to(seen[0].device)]
    measured = owners(tokens[None, None], leaf)
    if measured is None or measured[1] > _SHARED:
        return None
    own, counts = measured[0], positions.sum(1).tolist()
    found, first = [], 0
    for one, count in zip(own.chunk(len(counts)), counts, strict=True):
        here = one - first
        of_others = (one >= 0) & ((here < 0) | (here >= count))
        if bool(of_others.any()) or len(set(here[one >= 0].tolist())) != count:
            return None
        found.append(here.masked_fill(one < 0, -1))
        first += count
    return found


#: Largest share of a second image token in what a pixel does.
_SHARED = 0.2


def _as_leaf(pixels: Tensor) -> tuple[Tensor, Tensor]:
    """Images as a leaf of shape (1, channels, images · height, width), and as the model takes them.

    Flattened patches are a leaf of shape (1, patches, values).
    """
    if pixels.dim() == 2 or pixels.shape[-3] not in _CHANNELS or pixels.dim() == 3:
        leaf = pixels.detach().reshape(1, -1, pixels.shape[-1]).clone().requires_grad_()
        return leaf, leaf.reshape(pixels.shape)
    channels, height, width = pixels.shape[-3:]
    tiles = pixels.reshape(-1, channels, height, width)
    leaf = tiles.transpose(0, 1).reshape(1, channels, -1, width).detach().clone().requires_grad_()
    restored = leaf[0].view(channels, len(tiles), height, width).transpose(0, 1).reshape(pixels.shape)
    return leaf, restored


def stream_call(model: nn.Module, model_inputs: ModelInputs, stream: MergedStream) -> dict[str, Any]:
    """Arguments of `StreamModel`: without the images where these change nothing else than the stream."""
    whole = {**model_inputs.kwargs, STREAM: stream.vectors}
    bare = {name: value for name, value in whole.items() if name not in stream.images}
    with frozen(model), torch.no_grad():
        expected = _scores(_run(model, model_inputs))
        try:
            found = _scores(StreamModel(model, stream.place)(**bare))
        except Exception:  # noqa: BLE001 - the model needs its images, whatever its reason
            return whole
    return bare if _close(found, expected) else whole
