"""What came out: maps, and all that is needed to trust and repeat them."""

from __future__ import annotations

import json
import platform
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from vitrail.errors import InputError, OutputError
from vitrail.models.preprocess import Preprocess, rescale_to_bytes
from vitrail.targets import class_scores
from vitrail.viz.colormap import overlay, to_image

if TYPE_CHECKING:
    from PIL.Image import Image

    from vitrail.text.result import WordRelevance

UPSAMPLING = "bilinear, corners not aligned, then scaled to [0, 1] (signed maps to [-1, 1]) for each map"


@dataclass(frozen=True)
class Explanation:
    """Maps of one method for a batch; B images, K targets each.

    Attributes:
        method: What was asked for, variant and options included.
        title: The method's name in print.
        maps: Relevance at input resolution, shape (B, K, height, width), each map scaled to [0, 1], or to [-1, 1]
            where ``signed``; for text, relevance of tokens, shape (B, K, n), 0 at special tokens and padding.
        grid: Relevance of the patches as the method gave it, shape (B, K, rows, columns); for text, as ``maps``,
            but not scaled.
        targets: Class indices, shape (B, K), or None where the target was a function.
        logits: What the model said, shape (B, C), or None.
        options: The method's options, defaults included.
        seconds: Time the method took, its share of the common pass included.
        flat: Which maps are constant or not finite and so say nothing, shape (B, K).
        signed: Whether negative relevance means "against".
        model: The model's name.
        classes: Class names, if known.
        images: The images as they were fed to the model, shape (B, channels, height, width), or None for text.
        preprocess: How they were prepared, which says how to turn them back into pictures.
        structure: What was found inside the model, for the record.
        parts: What the method computed on the way, where that was asked for: by name, for each target a list of what
            was noted, in order (the method's page says what). Methods that treat all targets at once note once.
        text: For texts that were given with a tokenizer, the scores of each text's words; else None.
    """

    method: str
    title: str
    maps: Tensor
    grid: Tensor
    targets: Tensor | None
    logits: Tensor | None
    options: Mapping[str, Any]
    seconds: float
    flat: Tensor
    signed: bool = False
    model: str = ""
    classes: tuple[str, ...] | None = None
    images: Tensor | None = field(default=None, repr=False)
    preprocess: Preprocess | None = field(default=None, repr=False)
    structure: Mapping[str, str] = field(default_factory=dict, repr=False)
    parts: Mapping[str, Any] = field(default_factory=dict, repr=False)
    text: tuple[WordRelevance, ...] | None = field(default=None, repr=False)

    def __repr__(self) -> str:
        shape = "×".join(map(str, self.maps.shape))
        return f"Explanation({self.method}, maps {shape}, {self.label(0, 0)}, {self.seconds:.2f} s)"

    @property
    def probabilities(self) -> Tensor | None:
        """Probability of each target, shape (B, K), or None where targets are not classes."""
        if self.logits is None or self.targets is None:
            return None
        return class_scores(self.logits, "prob").gather(1, self.targets)

    @cached_property
    def pictures(self) -> np.ndarray[Any, Any] | None:
        """The images as bytes, shape (B, height, width, 3), or None for text; made when first asked for."""
        if self.images is None:
            return None
        known = self.preprocess is not None and len(self.preprocess.mean) == self.images.shape[1]
        return self.preprocess.denormalise(self.images) if known and self.preprocess else rescale_to_bytes(self.images)

    def label(self, image: int, k: int) -> str:
        """The target in words, with its probability."""
        if self.targets is None:
            return f"target {k}"
        index = int(self.targets[image, k])
        name = self.classes[index].split(",")[0] if self.classes and index < len(self.classes) else f"class {index}"
        probabilities = self.probabilities
        return name if probabilities is None else f"{name} ({_percent(float(probabilities[image, k]))})"

    def overlay(self, image: int = 0, k: int = 0, opacity: float = 0.75) -> Image:
        """One map over its picture."""
        if self.pictures is None:
            raise InputError("a text has no picture to lay a map over")
        relevance = self.maps[image, k].float().cpu().numpy()
        return to_image(overlay(self.pictures[image], relevance, self.signed, opacity))

    def figure(self, **options: Any) -> Any:
        """A matplotlib figure of all targets; see `vitrail.viz.figure.figure`, for texts `vitrail.viz.text.figure`."""
        return Explanations({self.method: self}).figure(**options)

    def manifest(self) -> dict[str, Any]:
        """All that is needed to repeat this explanation, ready for JSON."""
        probabilities = self.probabilities
        return {
            "method": self.method,
            "options": dict(self.options),
            "model": self.model,
            "structure": dict(self.structure),
            "targets": None if self.targets is None else self.targets.tolist(),
            "target_names": [[self.label(b, k) for k in range(self.maps.shape[1])] for b in range(self.maps.shape[0])],
            "probabilities": None if probabilities is None else probabilities.tolist(),
            "maps": {"shape": list(self.maps.shape), "dtype": str(self.maps.dtype), "upsampling": UPSAMPLING},
            "grid": list(self.grid.shape),
            "flat": self.flat.tolist(),
            "seconds": self.seconds,
            "device": str(self.maps.device),
            "versions": versions(),
        }

    def save(self, folder: str | Path) -> Path:
        """Write overlays as PNG, maps as safetensors and a manifest; each file appears whole or not at all.

        Returns:
            The folder.
        """
        from safetensors.torch import save_file

        folder = Path(folder)
        tensors = {"maps": self.maps, "grid": self.grid, "flat": self.flat}
        tensors |= {k: v for k, v in (("targets", self.targets), ("logits", self.logits)) if v is not None}
        with _writing(folder) as into:
            if self.pictures is not None:
                images, count = self.maps.shape[:2]
                for b in range(images):
                    for k in range(count):
                        which = "" if images == count == 1 else f"-{b:03d}-{k}-{slug(self.label(b, k))}"
                        with into(f"overlay{which}.png") as path:
                            self.overlay(b, k).save(path, format="PNG")
            if self.text is not None:
                from vitrail.viz.text import html, record

                with into("words.json") as path:
                    path.write_text(json.dumps(record(self), ensure_ascii=False) + "\n", encoding="utf-8")
                with into("text.html") as path:
                    path.write_text(html(Explanations({self.method: self})), encoding="utf-8")
            with into("maps.safetensors") as path:
                save_file({k: v.detach().cpu().contiguous() for k, v in tensors.items()}, path)
            with into("manifest.json") as path:
                path.write_text(json.dumps(self.manifest(), indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        return folder


class Explanations(Mapping[str, Explanation]):
    """Explanations of the same inputs by several methods, by name."""

    def __init__(self, by_method: Mapping[str, Explanation]) -> None:
        self._by_method = dict(by_method)

    def __getitem__(self, method: str) -> Explanation:
        return self._by_method[method]

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_method)

    def __len__(self) -> int:
        return len(self._by_method)

    def __repr__(self) -> str:
        return "Explanations(" + ", ".join(map(repr, self._by_method.values())) + ")"

    def figure(self, **options: Any) -> Any:
        """A matplotlib figure, a row for each target and a column for each method; see `vitrail.viz.figure.figure`.

        Of texts, see `vitrail.viz.text.figure`.
        """
        if all(e.text is not None for e in self._by_method.values()):
            from vitrail.viz.text import figure as text_figure

            return text_figure(self, **options)
        from vitrail.viz.figure import figure

        return figure(self, **options)

    def save(self, folder: str | Path) -> Path:
        """Write each method's results into a folder of its own name."""
        folder = Path(folder)
        for method, explanation in self._by_method.items():
            explanation.save(folder / slug(method))
        return folder


def versions() -> dict[str, str]:
    """Versions of Python and of the libraries that decide the numbers, as far as they are loaded."""
    found = {"python": platform.python_version(), "torch": torch.__version__, "numpy": np.__version__}
    for name in ("vitrail", "timm", "transformers", "torchvision", "open_clip_torch"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def slug(text: str) -> str:
    """A file name for a label.

    Example:
        >>> slug("tiger cat (12.3 %)"), slug("gradtoken:variant=3")
        ('tiger-cat', 'gradtoken-variant-3')
    """
    return re.sub(r"[^a-z0-9]+", "-", re.sub(r"\(.*?\)", "", text).lower()).strip("-") or "unnamed"


def _percent(p: float) -> str:
    return f"{100 * p:.1f} %" if p >= 0.001 else "<0.1 %"


@contextmanager
def _writing(folder: Path) -> Iterator[Any]:
    """Hand out names to write under; files are renamed into place when whole, and disk errors are told plainly."""

    @contextmanager
    def into(name: str) -> Iterator[Path]:
        unfinished = folder / f".{name}.part"
        try:
            yield unfinished
            unfinished.replace(folder / name)
        finally:
            unfinished.unlink(missing_ok=True)

    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield into
    except OutputError:
        raise
    except Exception as error:
        if not isinstance(error, OSError) and type(error).__name__ != "SafetensorError":
            raise
        raise OutputError(f"cannot write to {folder} ({error}): files already there are whole") from error
