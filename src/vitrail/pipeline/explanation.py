"""Results of `vitrail.explain`: relevance maps with their targets, settings and files."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from vitrail.errors import InputError
from vitrail.inputs.map_axis import MapAxis
from vitrail.inputs.map_source import MapSource, PromptSource, TextSource
from vitrail.inputs.targets import class_scores
from vitrail.models.class_group import ClassGroup, merge_groups, target_rows
from vitrail.models.preprocess import Preprocess, rescale_to_bytes, to_bytes
from vitrail.pipeline.original_image import OriginalImage
from vitrail.pipeline.prompt_words import PromptWords, prompt_records
from vitrail.pipeline.provenance import Provenance, versions
from vitrail.pipeline.saved_files import JPEG_QUALITY, atomic_writes, saved_overlays, slug
from vitrail.pipeline.smoothing import Smoothing
from vitrail.targets.bound_targets import TargetRecord
from vitrail.viz.box_outline import outline_box
from vitrail.viz.colormap import mark_failure, overlay, to_image

if TYPE_CHECKING:
    from PIL.Image import Image

    from vitrail.text.result import WordRelevance
    from vitrail.trust.map_check import MapCheck, MapChecks
    from vitrail.viz.viewer import ExplanationViewer


UPSAMPLING = "linear along each axis, align_corners=False, then each map scaled to [0, 1] (signed maps to [-1, 1])"


@dataclass(frozen=True, eq=False)
class Explanation:
    """Relevance maps of one method for a batch of B inputs with K targets each.

    Two explanations are equal only if they are the same object.

    Attributes:
        method: The method as requested, with its variant and options.
        title: The method's display name.
        maps: Relevance at input resolution, shape (B, K, height, width), each map scaled to [0, 1], or to [-1, 1]
            where ``signed``. For other inputs on axes, such as videos and sound, shape (B, K, axes …), see ``axes``.
            For texts: relevance of tokens, shape (B, K, n), 0 at special tokens and padding.
        grid: Relevance of the patches as the method computed it, shape (B, K, rows, columns), or on the model's own
            grid over the same axes as the maps. For texts: ``maps`` before scaling.
        targets: Class indices, shape (B, K), or None if the target was a function. With C classes, C + i stands for
            the group ``groups[i]``.
        logits: The model's logits, shape (B, C), or None.
        options: The method's options, defaults included.
        seconds: Run time of the method, including the forward and backward passes it shares with other methods.
        constant: Which maps are constant or not finite and therefore carry no information, shape (B, K).
        signed: Whether negative relevance means evidence against the target.
        model: The model's name.
        classes: Class names, or None if unknown.
        images: The model's input images, shape (B, channels, height, width), or None for texts.
        preprocess: Preprocessing of the images, used to undo their normalisation, or None if unknown.
        structure: The model structure that was found, as (name, value) entries for display.
        intermediates: Intermediate results of the method if ``keep=True``: for each name a list over targets, each a
            list in the order of computation. Methods that process all targets at once have one entry. The method's
            documentation page lists the names.
        text: For texts that were passed with a tokenizer, the word scores of each text. For prompts, the word scores of
            each image's prompts, all targets of the first image first; they are computed at first access. Otherwise
            None.
        provenance: Names of the inputs, preprocessing and hash of the weights, or None if unknown.
        groups: Groups of classes among the targets.
        source: The model and inputs, for `check`: an explanation keeps its model in memory. None for explanations that
            were read from files or put together by hand; ``dataclasses.replace(e, source=None)`` lets go of the model.
        checks: Results of ``explain(check=True)`` by image and target.
        smoothing: How the maps were smoothed, or None if they were not.
        target_labels: Names of the K targets of a function, such as the texts that `vitrail.similarity` was given; None
            if unknown.
        scores: What turns the logits into probabilities: "softmax", "sigmoid" (each class by itself) or "identity" (a
            regression, whose values are taken as they are).
        axes: The axes of a map, such as time, height and width; empty for texts.
        signal: The model's input where it lies on axes and is no image: (B, channels, axes …), or None.
        originals: The images that were preprocessed, with the part of each that the model saw (``geometry``); None if
            the inputs were tensors or texts.
        named_targets: For targets of `vitrail.targets`: what was asked and explained, one row of K for each image.
    """

    method: str
    title: str
    maps: Tensor
    grid: Tensor
    targets: Tensor | None
    logits: Tensor | None
    options: Mapping[str, Any]
    seconds: float
    constant: Tensor
    signed: bool = False
    model: str = ""
    classes: tuple[str, ...] | None = None
    images: Tensor | None = field(default=None, repr=False)
    preprocess: Preprocess | None = field(default=None, repr=False)
    structure: Mapping[str, str] = field(default_factory=dict, repr=False)
    intermediates: Mapping[str, Any] = field(default_factory=dict, repr=False)
    text: Sequence[WordRelevance] | None = field(default=None, repr=False)
    provenance: Provenance | None = field(default=None, repr=False)
    groups: tuple[ClassGroup, ...] = ()
    source: MapSource | TextSource | PromptSource | None = field(default=None, repr=False)
    checks: Mapping[tuple[int, int], MapCheck] = field(default_factory=dict, repr=False)
    smoothing: Smoothing | None = None
    target_labels: tuple[str, ...] | None = None
    scores: str = "softmax"
    originals: tuple[OriginalImage, ...] | None = field(default=None, repr=False)
    named_targets: tuple[tuple[TargetRecord, ...], ...] | None = field(default=None, repr=False)
    axes: tuple[MapAxis, ...] = ()
    signal: Tensor | None = field(default=None, repr=False)

    def __repr__(self) -> str:
        shape = "×".join(map(str, self.maps.shape))
        return f"Explanation({self.method}, maps {shape}, {self.label(0, 0)}, {self.seconds:.2f} s)"

    @property
    def image(self) -> Explanation:
        """The image side of a prompt, which is this explanation; ``text`` is the other side.

        Raises:
            InputError: Texts were explained.
        """
        if self.images is None:
            raise InputError("this is an explanation of texts, which has no image")
        return self

    @property
    def of_texts(self) -> bool:
        """Whether texts were explained, and no images."""
        return self.text is not None and self.images is None

    @property
    def probabilities(self) -> Tensor | None:
        """Probability of each target, shape (B, K); None where targets are no classes or values of a regression."""
        if self.logits is None or self.targets is None or self.scores == "identity":
            return None
        return class_scores(self.logits, "prob", self.groups, self.scores).gather(1, self.targets)

    @cached_property
    def rgb_images(self) -> np.ndarray[Any, Any] | None:
        """The images as uint8, shape (B, height, width, 3), or None for texts; computed at first access."""
        if self.images is None:
            return None
        known = self.preprocess is not None and len(self.preprocess.mean) == self.images.shape[1]
        return self.preprocess.denormalise(self.images) if known and self.preprocess else rescale_to_bytes(self.images)

    def label(self, image: int, k: int) -> str:
        """Class name and probability of a target, for display; a group has its own name or those of its classes."""
        name, probabilities = self.target_name(image, k), self.probabilities
        return name if probabilities is None else f"{name} ({_percent(float(probabilities[image, k]))})"

    def target_name(self, image: int, k: int) -> str:
        """Name of a target, for display: a class, a group of classes, or the text of a row of a CLIP model."""
        if self.named_targets is not None:
            return self.named_targets[image][k].title
        if self.targets is None:
            return self.target_labels[k] if self.target_labels and k < len(self.target_labels) else f"target {k}"
        index = int(self.targets[image, k])
        if self.groups and self.logits is not None and index >= self.logits.shape[1]:
            return self.groups[index - self.logits.shape[1]].title(self.classes)
        return self.classes[index].split(",")[0] if self.classes and index < len(self.classes) else f"class {index}"

    def overlay(self, image: int = 0, k: int = 0, opacity: float = 0.75, original: bool = False) -> Image:
        """Draw one map over its image; a map that was checked and failed carries its verdict in a corner.

        A video is drawn as a contact sheet, a spectrogram with axes in seconds and hertz, a series as lines over the
        colour of their relevance, and features as bars; see `with_axes`.

        Args:
            image: Which image.
            k: Which target.
            opacity: Opacity of the colour where relevance is highest.
            original: Draw over the image file or PIL image that was passed, at its own size, instead of the model's
                input. The part that the model saw is outlined; what was cropped away is dimmed. ``originals`` says
                which part that is.

        Raises:
            InputError: This explains texts; or, with ``original``, tensors, or images that cannot be read any more.

        Example:
            >>> import vitrail
            >>> from PIL import Image
            >>> from vitrail.testing import tiny_vit
            >>> prepare = vitrail.Preprocess((32, 32))
            >>> e = vitrail.explain(tiny_vit(), Image.effect_noise((90, 60), 50), "rollout", preprocess=prepare)
            >>> e.overlay().size, e.overlay(original=True).size
            ((32, 32), (90, 60))
            >>> print(e.originals[0].geometry)
            the model saw 53 % of the image: columns 18 to 72 of 90 and rows 3 to 57 of 60
        """
        relevance = self.maps[image, k].float().cpu().numpy()
        if self.signal is not None:
            drawn = self._draw_signal(image, relevance, opacity)
        elif self.rgb_images is None:
            raise InputError("this is an explanation of texts, which have no overlay: use vitrail.text.html")
        elif original:
            drawn = self._draw_on_original(image, relevance, opacity)
        else:
            drawn = to_image(overlay(self.rgb_images[image], relevance, self.signed, opacity))
        drawn = self._with_box(drawn, image, k, original)
        check = self.checks.get((image, k))
        return drawn if check is None or check.passed else mark_failure(drawn, check.verdict)

    def _with_box(self, drawn: Image, image: int, k: int, original: bool) -> Image:
        """The overlay with the box of its target, if that has one."""
        record = None if self.named_targets is None else self.named_targets[image][k]
        if record is None or record.corners is None:
            return drawn
        geometry = self.originals[image].geometry if original and self.originals else None
        return outline_box(drawn, record.corners, geometry)

    def _draw_signal(self, image: int, relevance: np.ndarray[Any, Any], opacity: float) -> Image:
        from vitrail.viz.signal_overlay import draw_signal

        if relevance.ndim != len(self.axes):
            raise InputError(
                "the map is one of tokens whose places in the input could not be measured, so it cannot be drawn: pass "
                "layout=vitrail.Layout(prefix=…, grid=…), or use a method that needs the model's outputs alone"
            )
        return draw_signal(self._drawn_signal(image), relevance, self.axes, self.signed, opacity)

    def _drawn_signal(self, image: int) -> np.ndarray[Any, Any]:
        """The input with its channels first: uint8 RGB for videos, numbers otherwise."""
        assert self.signal is not None
        signal = self.signal[image].float()
        if len(self.axes) != 3:
            return signal.cpu().numpy()
        frames = signal.transpose(0, 1)
        known = self.preprocess is not None and len(self.preprocess.mean) == frames.shape[1]
        if known and self.preprocess:
            return self.preprocess.denormalise(frames).transpose(3, 0, 1, 2)
        low, high = frames.min(), frames.max()
        return to_bytes((frames - low) / (high - low).clamp_min(1e-12)).transpose(3, 0, 1, 2)

    def frames(self, image: int = 0, k: int = 0, opacity: float = 0.75) -> list[Image]:
        """Draw the map of a video over each of its frames.

        Args:
            image: Which video.
            k: Which target.
            opacity: Opacity of the colour where relevance is highest.
        """
        return [to_image(frame) for frame in self._frames(image, k, opacity)]

    def _frames(self, image: int, k: int, opacity: float) -> list[np.ndarray[Any, Any]]:
        from vitrail.viz.clip import frame_overlays

        relevance = self.maps[image, k].float().cpu().numpy()
        if self.signal is None or relevance.ndim != 3 or len(self.axes) != 3:
            raise InputError("only the maps of videos have frames: draw this explanation with overlay()")
        return frame_overlays(self._drawn_signal(image).transpose(1, 2, 3, 0), relevance, self.signed, opacity)

    def animate(
        self, path: str | Path, image: int = 0, k: int = 0, opacity: float = 0.75, rate: float | None = None
    ) -> Path:
        """Write the map of a video over its frames as a .gif, or with the extra ``media`` as an .mp4.

        Args:
            path: The file; its suffix decides on the format.
            image: Which video.
            k: Which target.
            opacity: Opacity of the colour where relevance is highest.
            rate: Frames a second; by default that of the video, or 4 where it is unknown.

        Returns:
            The path.
        """
        from vitrail.viz.clip import save_animation

        frames = self._frames(image, k, opacity)
        known = 1 / self.axes[0].step if self.axes[0].unit == "s" and self.axes[0].values is None else None
        return save_animation(frames, path, rate or known)

    def with_axes(self, **axes: Any) -> Explanation:
        """The same with units or names of its axes, for overlays of sound, series, features and videos.

        Args:
            **axes: By the name of an axis: the step between two entries (seconds for time, hertz for frequency), the
                value of each entry, or the name of each entry.

        Raises:
            InputError: There is no such axis, or the number of values does not fit.

        Example:
            >>> import torch
            >>> import vitrail
            >>> class Table(torch.nn.Module):
            ...     def forward(self, x):
            ...         return x @ torch.eye(3)[:, :2]
            >>> e = vitrail.explain(Table(), torch.ones(1, 3), "gradient_x_input", target=0)
            >>> e.with_axes(features=["age", "height", "weight"]).axes[0].label(0)
            'age'
        """
        known = {axis.name: i for i, axis in enumerate(self.axes)}
        unknown = [name for name in axes if name not in known]
        if unknown:
            listed = ", ".join(known) or "none"
            raise InputError(f"there is no axis {unknown[0]!r}: the axes of these maps are {listed}")
        found = list(self.axes)
        sizes = [int(n) for n in (self.maps if self.signal is None else self.signal).shape[2:]]
        for name, value in axes.items():
            found[known[name]] = found[known[name]].given(value, sizes[known[name]])
        return replace(self, axes=tuple(found))

    def _draw_on_original(self, image: int, relevance: np.ndarray[Any, Any], opacity: float) -> Image:
        from vitrail.viz.original_overlay import original_overlay

        if self.originals is None:
            raise InputError("tensors were explained, so there is no original image: pass paths or PIL images")
        source = self.originals[image]
        if source.geometry is None:
            raise InputError(
                "the preprocessing is a function, so it is unknown which part of the image the model saw: pass "
                "preprocess=vitrail.Preprocess(size, mean, std, crop)"
            )
        return original_overlay(source.open(), relevance, source.geometry, self.signed, opacity)

    def check(self, image: int = 0, k: int = 0, **options: Any) -> MapCheck:
        """Check one map on the model and image it explains.

        Patches, or the words of a text, are removed in the order of the map, and in the order of moved copies of it.
        The map is computed again for another class, under noise, and after parts of the model were randomised; the
        model is restored.

        Args:
            image: Which image.
            k: Which target.
            **options: ``budget`` "quick" (at most 200 forward passes a map, if the method needs no more than a few) or
                "full"; ``tests``, some of "removal", "class", "noise" and "model"; ``removal``, "tokens" or the name of
                a fill, for a text "words" or "mask"; ``seed``; ``advance``, called with the number of images just
                evaluated.

        Returns:
            Numbers, verdict and sentences.

        Example:
            >>> import torch
            >>> import vitrail
            >>> from vitrail.testing import tiny_vit
            >>> e = vitrail.explain(tiny_vit(), torch.randn(1, 3, 32, 32), "transformer_mm")
            >>> e.check(tests=["removal"]).copies
            49
        """
        return Explanations({self.method: self}).check(image, k, **options)[self.method]

    def figure(self, **options: Any) -> Any:
        """Draw all targets with matplotlib; see `vitrail.viz.figure.figure`."""
        return Explanations({self.method: self}).figure(**options)

    def view(self, height: int = 460) -> ExplanationViewer:
        """An interactive viewer, which displays itself in a notebook; ``save`` writes it as an HTML file.

        It shows the maps over their images, or the words of texts: choose the image and the class, change the opacity,
        and point at a patch or word to read its value. It contains everything it needs and loads nothing.

        Args:
            height: Height of the frame in a notebook, in pixels.

        Example:
            >>> import torch
            >>> import vitrail
            >>> from vitrail.testing import tiny_vit
            >>> e = vitrail.explain(tiny_vit(), torch.randn(1, 3, 32, 32), "rollout")
            >>> "<iframe" in e.view()._repr_html_()
            True
        """
        return Explanations({self.method: self}).view(height)

    def _repr_html_(self) -> str:
        return Explanations({self.method: self})._repr_html_()

    def manifest(self) -> dict[str, Any]:
        """Settings needed to reproduce this explanation, as JSON values."""
        probabilities, provenance = self.probabilities, self.provenance
        return {
            "method": self.method,
            "options": dict(self.options),
            "model": self.model,
            "weights_sha256": None if provenance is None else provenance.weights.hexdigest(),
            "inputs": None if provenance is None else list(provenance.inputs),
            "preprocess": None if provenance is None else dict(provenance.preprocess),
            "structure": dict(self.structure),
            "targets": self._target_lists(),
            "target_names": [[self.label(b, k) for k in range(self.maps.shape[1])] for b in range(self.maps.shape[0])],
            "probabilities": None if probabilities is None else probabilities.tolist(),
            "maps": {"shape": list(self.maps.shape), "dtype": str(self.maps.dtype), "upsampling": UPSAMPLING},
            "grid": list(self.grid.shape),
            "constant": self.constant.tolist(),
            "seconds": self.seconds,
            "device": str(self.maps.device),
            "overlays": self._overlay_names(),
            "versions": versions(),
        } | self._optional_entries()

    def _optional_entries(self) -> dict[str, Any]:
        """Entries of the manifest for original images, groups of classes and checks, if there are any."""
        found: dict[str, Any] = {}
        geometries = [one.geometry for one in self.originals or ()]
        if any(geometries):
            found["geometry"] = [None if one is None else one.to_dict() for one in geometries]
        if self.signal is not None:
            units = [{"name": a.name, "unit": a.unit, "step": a.step, "values": a.values, "labels": a.labels}
                     for a in self.axes]  # fmt: skip
            found["axes"] = [{k: v for k, v in one.items() if v is not None} for one in units]
        if self.groups:
            found["groups"] = [{"name": g.name, "classes": list(g.indices)} for g in self.groups]
        if self.named_targets is not None:
            found["named_targets"] = [[one.to_dict() for one in row] for row in self.named_targets]
        if self.smoothing is not None:
            found["smoothing"] = self.smoothing.settings()
        if self.checks:
            found["checks"] = [{"image": b, "target": k, **c.to_dict()} for (b, k), c in self.checks.items()]
        return found

    def _target_lists(self) -> list[list[int | list[int]]] | None:
        """Class index of each target, or the list of a group's indices, as JSON values."""
        if self.targets is None:
            return None
        count = int(self.targets.max()) + 1 if self.logits is None else self.logits.shape[1]
        rows = target_rows(self.targets, self.groups, count)
        return [[list(one.indices) if isinstance(one, ClassGroup) else one for one in row] for row in rows]

    def save(self, folder: str | Path, original: bool = False) -> Path:
        """Write overlays as PNG, maps as safetensors and a JSON manifest. Each file is written atomically.

        Overlays of an explanation that was saved to the same folder before are removed if its manifest lists them.

        Args:
            folder: The folder, which is created.
            original: Also write overlays on the original images, as JPEG; see `overlay`.

        Returns:
            The folder.
        """
        from safetensors.torch import save as to_safetensors

        folder = Path(folder)
        tensors = {"maps": self.maps, "grid": self.grid, "constant": self.constant}
        tensors |= {k: v for k, v in (("targets", self.targets), ("logits", self.logits)) if v is not None}
        with atomic_writes(folder) as into:
            names = self._overlay_names()
            for i, name in enumerate(names):
                with into(name) as path:
                    self.overlay(*divmod(i, self.maps.shape[1])).save(path, format="PNG")
            animations = self._overlay_names(suffix="gif") if self.signal is not None and len(self.axes) == 3 else []
            for i, name in enumerate(animations):
                self.animate(folder / name, *divmod(i, self.maps.shape[1]))
            originals = self._overlay_names("overlay-original", "jpg") if original else []
            for i, name in enumerate(originals):
                with into(name) as path:
                    drawn = self.overlay(*divmod(i, self.maps.shape[1]), original=True)
                    drawn.save(path, format="JPEG", quality=JPEG_QUALITY)
            if isinstance(self.text, PromptWords) and self.text.is_computed:
                with into("words.json") as path:
                    records = json.dumps(prompt_records(self.text), ensure_ascii=False)
                    path.write_text(records + "\n", encoding="utf-8")
            if self.of_texts:
                from vitrail.text.rendering import html, to_records

                with into("words.json") as path:
                    path.write_text(json.dumps(to_records(self), ensure_ascii=False) + "\n", encoding="utf-8")
                with into("text.html") as path:
                    path.write_text(html(Explanations({self.method: self})), encoding="utf-8")
            with into("maps.safetensors") as path:
                path.write_bytes(to_safetensors({k: v.detach().cpu().contiguous() for k, v in tensors.items()}))
            for name in saved_overlays(folder) - {*names, *originals, *animations}:
                (folder / name).unlink(missing_ok=True)
            with into("manifest.json") as path:
                content = self.manifest() | {"overlays": [*names, *originals, *animations]}
                manifest = json.dumps(content, indent=2, ensure_ascii=False, default=str)
                path.write_text(manifest + "\n", encoding="utf-8")
        return folder

    def _overlay_names(self, stem: str = "overlay", suffix: str = "png") -> list[str]:
        """File names of the overlays, all targets of the first image first."""
        drawn = self.images is not None or (self.signal is not None and self.maps.dim() == 2 + len(self.axes))
        if not drawn:
            return []
        images, count = self.maps.shape[:2]
        if images == count == 1:
            return [f"{stem}.{suffix}"]
        return [f"{stem}-{b:03d}-{k}-{slug(self.label(b, k))}.{suffix}" for b in range(images) for k in range(count)]


class Explanations(Mapping[str, Explanation]):
    """Explanations of the same inputs by several methods: a mapping from method name to `Explanation`."""

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
        """Draw all methods with matplotlib: one row per target, one column per method.

        See `vitrail.viz.figure.figure` for the options, or `vitrail.text.rendering.figure` for texts.
        """
        if all(e.of_texts for e in self._by_method.values()):
            from vitrail.text.rendering import figure as text_figure

            return text_figure(self, **options)
        if all(e.signal is not None for e in self._by_method.values()):
            from vitrail.viz.signal_figure import signal_figure

            return signal_figure(self, **options)
        from vitrail.viz.figure import figure

        return figure(self, **options)

    def _repr_html_(self) -> str:
        """Display in notebooks: each image beside its maps, or the words of texts in colour."""
        if all(e.of_texts for e in self._by_method.values()):
            from vitrail.text.rendering import words_html

            return words_html(self)
        from vitrail.viz.notebook import explanations_html

        return explanations_html(self)

    def view(self, height: int = 460) -> ExplanationViewer:
        """An interactive viewer with the maps of all methods side by side; see `Explanation.view`."""
        from vitrail.viz.viewer import ExplanationViewer

        return ExplanationViewer(self, height)

    def check(self, image: int = 0, k: int = 0, **options: Any) -> MapChecks:
        """Check one map of each method; see `Explanation.check`. Forward passes are shared where they can be."""
        from vitrail.trust.checker import check_maps

        sources = [e.source for e in self._by_method.values()]
        if not sources or sources[0] is None:
            raise InputError("these maps have no model to be checked on: check what vitrail.explain returned")
        return check_maps(sources[0], self, image, k, **options)

    def save(self, folder: str | Path, original: bool = False) -> Path:
        """Write the files of each method into a subfolder named after it; see `Explanation.save`."""
        folder = Path(folder)
        for method, explanation in self._by_method.items():
            explanation.save(folder / slug(method), original)
        return folder


def number_groups_alike(pieces: Sequence[Explanation]) -> list[Explanation]:
    """Explanations of different inputs with their groups of classes in one common order."""
    targets = [piece.targets for piece in pieces if piece.targets is not None]
    logits = pieces[0].logits
    if len(targets) < len(pieces) or logits is None:
        return list(pieces)
    numbered, groups = merge_groups(targets, [piece.groups for piece in pieces], logits.shape[1])
    return [replace(piece, targets=own, groups=groups) for piece, own in zip(pieces, numbered, strict=True)]


def _percent(p: float) -> str:
    return f"{100 * p:.1f} %" if p >= 0.001 else "<0.1 %"
