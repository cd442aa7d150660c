"""Results of `vitrail.explain`: relevance maps with their targets, settings and files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitrail.errors import InputError
from vitrail.models.class_group import merge_groups
from vitrail.pipeline.explanation_data import ExplanationData
from vitrail.pipeline.explanation_drawing import axes_given, draw_frames, draw_overlay, frame_rate
from vitrail.pipeline.explanation_files import manifest, save_explanation
from vitrail.pipeline.saved_files import slug
from vitrail.viz.clip import save_animation
from vitrail.viz.colormap import to_image

if TYPE_CHECKING:
    from PIL.Image import Image

    from vitrail.trust.map_check import MapCheck, MapChecks
    from vitrail.viz.viewer import ExplanationViewer


@dataclass(frozen=True, eq=False)
class Explanation(ExplanationData):
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
        return draw_overlay(self, image, k, opacity, original)

    def frames(self, image: int = 0, k: int = 0, opacity: float = 0.75) -> list[Image]:
        """Draw the map of a video over each of its frames.

        Args:
            image: Which video.
            k: Which target.
            opacity: Opacity of the colour where relevance is highest.
        """
        return [to_image(frame) for frame in draw_frames(self, image, k, opacity)]

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
        return save_animation(draw_frames(self, image, k, opacity), path, rate or frame_rate(self))

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
        return replace(self, axes=axes_given(self, axes))

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
        return manifest(self)

    def save(self, folder: str | Path, original: bool = False) -> Path:
        """Write overlays as PNG, maps as safetensors and a JSON manifest. Each file is written atomically.

        Overlays of an explanation that was saved to the same folder before are removed if its manifest lists them.

        Args:
            folder: The folder, which is created.
            original: Also write overlays on the original images, as JPEG; see `overlay`.

        Returns:
            The folder.
        """
        return save_explanation(self, folder, original)


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
            from vitrail.viz.figure import signal_figure

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
