"""Types of what the drawing functions read, declared here so that ``viz`` does not import ``vitrail.explanation``."""

# ruff: noqa: D102 - the attributes are documented at `vitrail.Explanation`

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from torch import Tensor

if TYPE_CHECKING:
    import numpy as np
    from PIL.Image import Image


class MapsLike(Protocol):
    """The attributes of `vitrail.Explanation` that are drawn."""

    @property
    def method(self) -> str: ...
    @property
    def title(self) -> str: ...
    @property
    def maps(self) -> Tensor: ...
    @property
    def grid(self) -> Tensor: ...
    @property
    def constant(self) -> Tensor: ...
    @property
    def signed(self) -> bool: ...
    @property
    def model(self) -> str: ...
    @property
    def rgb_images(self) -> np.ndarray[Any, Any] | None: ...
    @property
    def signal(self) -> Tensor | None: ...
    @property
    def checks(self) -> Mapping[tuple[int, int], Any]: ...
    @property
    def text(self) -> Sequence[Any] | None: ...
    @property
    def of_texts(self) -> bool: ...
    @property
    def named_targets(self) -> tuple[tuple[Any, ...], ...] | None: ...

    def label(self, image: int, k: int) -> str: ...


class ExplanationLike(MapsLike, Protocol):
    """An explanation that also draws its maps over their images."""

    def overlay(self, image: int = ..., k: int = ..., opacity: float = ...) -> Image: ...
