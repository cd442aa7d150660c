"""The description of a call's tensors: the role of each, its axes, and whether it has one entry for each example."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

IMAGE, VIDEO, PATCHES, SPECTROGRAM, SERIES, TOKENS = "image", "video", "patches", "spectrogram", "series", "tokens"
FEATURES, POSITIONS, MASK, SHARED, OTHER = "features", "positions", "mask", "shared", "other"
#: Every role. The first seven can be explained: where a call has several of them, the first one in this order is.
ROLES = (IMAGE, VIDEO, PATCHES, SPECTROGRAM, SERIES, TOKENS, FEATURES, POSITIONS, MASK, SHARED, OTHER)
EXPLAINED = ROLES[:7]
#: Roles of numbers that lie on axes, see `vitrail.capture.signal_axes`.
SIGNALS = (IMAGE, VIDEO, SPECTROGRAM, SERIES, FEATURES)

_BATCH = "batch"
#: Parts of names that give a tensor a role whatever its shape.
_PARTS = {"mask": MASK, "position": POSITIONS, "coord": POSITIONS, "bbox": POSITIONS, "valid": MASK}
#: Names of sequences of numbers, with their role.
_FLOATS = {
    "input_features": SPECTROGRAM, "spectrogram": SPECTROGRAM, "mel": SPECTROGRAM, "input_values": SERIES,
    "past_values": SERIES, "waveform": SERIES, "audio": SERIES, "series": SERIES, "time_series": SERIES,
    "pixel_values": PATCHES, "patches": PATCHES, "features": FEATURES, "x_num": FEATURES, "x_cont": FEATURES,
    "numerical_features": FEATURES, "numeric_features": FEATURES,
}  # fmt: skip
_AXES = {
    IMAGE: (_BATCH, "channels", "height", "width"),
    VIDEO: (_BATCH, "time", "channels", "height", "width"),
    PATCHES: (_BATCH, "patches", "values"),
    SPECTROGRAM: (_BATCH, "time", "frequency"),
    SERIES: (_BATCH, "time", "variables"),
    FEATURES: (_BATCH, "features"),
    TOKENS: (_BATCH, "tokens"),
}
#: Numbers of channels of a video.
_CHANNELS = (1, 2, 3, 4)


@dataclass(frozen=True)
class InputTensor:
    """One tensor of a call, described.

    Attributes:
        name: The argument's name; "[0]" for the first positional one, "batch.image" for an entry of a nested one.
        role: One of "image", "video", "patches" (flattened, in place of an image), "spectrogram", "series",
            "features" (of a table), "tokens", "positions", "mask", "shared" (context of all examples, such as the texts
            of CLIP) and "other".
        axes: What each axis is.
        per_example: Whether entry i along the first axis belongs to example i.
        known_by: "name", "shape", "effect" or "argument": what the role and the batch axis were found by.
    """

    name: str
    role: str
    axes: tuple[str, ...]
    per_example: bool
    known_by: str = "shape"

    @property
    def key(self) -> str:
        """The last part of the name, which libraries give a meaning to."""
        return self.name.rpartition(".")[2]

    @property
    def packed(self) -> bool:
        """Whether the patches of all examples lie in one long row, without a batch axis."""
        return self.axes[:1] == ("patches",)

    def __str__(self) -> str:
        if self.packed:
            return (
                f"{self.role} ({', '.join(self.axes)}), those of all examples in one row; known by its {self.known_by}"
            )
        owner = "one of each example" if self.per_example else "shared by all examples"
        return f"{self.role} ({', '.join(self.axes)}), {owner}; known by its {self.known_by}"


def role_of(name: str, tensor: Tensor) -> tuple[str, str]:
    """The role of a tensor by its name and shape, and which of the two it is known by.

    Example:
        >>> import torch
        >>> role_of("pixel_values", torch.zeros(2, 3, 8, 8)), role_of("input_ids", torch.zeros(2, 7).long())
        (('image', 'shape'), ('tokens', 'name'))
    """
    key = name.rpartition(".")[2]
    part = next((role for text, role in _PARTS.items() if text in key), None)
    if part is not None:
        return part, "name"
    if tensor.dim() == 0:
        return SHARED, "shape"
    if not tensor.is_floating_point():
        if key.endswith("input_ids") or key in ("ids", "tokens"):
            return TOKENS, "name"
        unnamed = key.startswith("[") or not key
        return (TOKENS, "shape") if tensor.dim() == 2 and unnamed else (OTHER, "shape")
    if tensor.dim() in (4, 5):
        return (IMAGE if tensor.dim() == 4 else VIDEO), "shape"
    if key in _FLOATS and tensor.dim() in (2, 3):
        role = _FLOATS[key]
        if role == FEATURES:
            return (FEATURES, "name") if tensor.dim() == 2 else (OTHER, "shape")
        return (SPECTROGRAM if key == "input_values" and tensor.dim() == 3 else role), "name"
    return OTHER, "shape"


def axes_of(role: str, tensor: Tensor, packed: bool = False) -> tuple[str, ...]:
    """What the axes of a tensor with a role are.

    Example:
        >>> import torch
        >>> axes_of("image", torch.zeros(2, 3, 8, 8)), axes_of("other", torch.zeros(2, 5))
        (('batch', 'channels', 'height', 'width'), ('batch', 'axis 1'))
        >>> axes_of("spectrogram", torch.zeros(2, 80, 3000))  # time is the longer axis
        ('batch', 'frequency', 'time')
    """
    known = _AXES.get(role, ())
    if packed:
        return ("patches", *(f"axis {i}" for i in range(1, tensor.dim())))
    if role == SERIES and tensor.dim() == 2:
        return known[:2]
    if role == VIDEO and tensor.dim() == 5 and int(tensor.shape[1]) in _CHANNELS and tensor.shape[2] not in _CHANNELS:
        return (_BATCH, "channels", "time", "height", "width")
    if role == SPECTROGRAM and tensor.dim() == 3 and tensor.shape[2] > tensor.shape[1]:
        return (_BATCH, "frequency", "time")
    if len(known) == tensor.dim():
        return known
    first = ("axis 0",) if role == SHARED else (_BATCH,)
    return (*first, *(f"axis {i}" for i in range(1, tensor.dim())))[: tensor.dim()]


def describe_tensors(named: Sequence[tuple[str, Tensor]], of: str | None = None) -> tuple[InputTensor, ...]:
    """Describe the tensors of a call by their names and shapes alone.

    Args:
        named: Names and tensors, in order.
        of: Name of the tensor that is explained, or None for the first by role.

    Example:
        >>> import torch
        >>> call = [("pixel_values", torch.zeros(2, 3, 8, 8)), ("input_ids", torch.zeros(5, 7).long())]
        >>> [(one.role, one.per_example) for one in describe_tensors(call)]
        [('image', True), ('shared', False)]
    """
    found = [role_of(name, tensor) for name, tensor in named]
    packed = [role == PATCHES and tensor.dim() == 2 for (role, _), (_, tensor) in zip(found, named, strict=True)]
    # Flattened patches of several images in one long row have no batch axis, so that they cannot be explained.
    usable = [OTHER if flat else role for (role, _), flat in zip(found, packed, strict=True)]
    main = explained_index(usable, [name for name, _ in named], of)
    rows = None if main is None or packed[main] or not named[main][1].dim() else int(named[main][1].shape[0])
    described = []
    for i, ((name, tensor), (role, by)) in enumerate(zip(named, found, strict=True)):
        own = not packed[i] and tensor.dim() > 0 and int(tensor.shape[0]) == rows
        shown = role if own or role not in EXPLAINED or i == main or packed[i] else SHARED
        known_by = by if shown == role else "shape"
        described.append(InputTensor(name, shown, axes_of(shown, tensor, packed[i]), own, known_by))
    return tuple(described)


def explained_index(roles: Sequence[str], names: Sequence[str], of: str | None = None) -> int | None:
    """Index of the tensor that is explained: the one that is named, else the first one of the first role."""
    if of is not None:
        return next((i for i, name in enumerate(names) if name == of), None)
    order = sorted((EXPLAINED.index(role), i) for i, role in enumerate(roles) if role in EXPLAINED)
    if order:
        return order[0][1]
    return 0 if roles else None
