"""Vitrail's methods with Captum's interface, and attributions of other libraries as maps for `vitrail.scores`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, overload

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from vitrail.capture.forward import forward_only
from vitrail.errors import InputError, OptionError
from vitrail.inputs.map_source import MapSource
from vitrail.inputs.targets import Target, class_scores
from vitrail.methods import METHODS, find
from vitrail.models import LoadedModel
from vitrail.pipeline.explain import DEFAULT, explain
from vitrail.pipeline.explanation import Explanation
from vitrail.pipeline.shared_pass import MOST

Sign = Literal["keep", "positive", "abs"]
Baselines = float | Tensor | NDArray[Any] | None
#: Methods whose relevance adds up to the difference between the scores of image and baseline.
COMPLETE = ("integrated_gradients",)


class Attribution:
    """A method with the interface of Captum's attribution classes.

    Args:
        model: The model.
        method: A method's name, as for `vitrail.explain`.
        scaled: Whether maps are scaled to [0, 1], or [-1, 1] if signed, at the size of the images. Otherwise relevance
            is returned as the method computed it, on its own grid; only then do attributions add up.
        **options: The method's options, and other arguments of `vitrail.explain` such as ``batch_size``.

    Example:
        >>> from vitrail.testing import tiny_vit
        >>> Attribution(tiny_vit(), "rollout").attribute(torch.randn(2, 3, 32, 32), target=1).shape
        torch.Size([2, 1, 32, 32])
        >>> integrated = Attribution(tiny_vit(), "integrated_gradients", scaled=False)
        >>> images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
        >>> _, delta = integrated.attribute(images, target=1, n_steps=32, return_convergence_delta=True)
        >>> bool(delta.abs().max() < 1e-3)
        True
    """

    def __init__(
        self, model: nn.Module | LoadedModel, method: str = DEFAULT, *, scaled: bool = True, **options: Any
    ) -> None:
        self.model = model
        self.method = method
        self.scaled = scaled
        self.options = options

    @overload
    def attribute(
        self, inputs: Tensor, target: Target = ..., *, baselines: Baselines = ..., n_steps: int | None = ...,
        internal_batch_size: int | None = ..., return_convergence_delta: Literal[False] = ...,
    ) -> Tensor: ...  # fmt: skip

    @overload
    def attribute(
        self, inputs: NDArray[Any], target: Target = ..., *, baselines: Baselines = ..., n_steps: int | None = ...,
        internal_batch_size: int | None = ..., return_convergence_delta: Literal[False] = ...,
    ) -> NDArray[Any]: ...  # fmt: skip

    @overload
    def attribute(
        self, inputs: Tensor | NDArray[Any], target: Target = ..., *, baselines: Baselines = ...,
        n_steps: int | None = ..., internal_batch_size: int | None = ..., return_convergence_delta: Literal[True],
    ) -> tuple[Any, Any]: ...  # fmt: skip

    def attribute(
        self,
        inputs: Tensor | NDArray[Any],
        target: Target = None,
        *,
        baselines: Baselines = None,
        n_steps: int | None = None,
        internal_batch_size: int | None = None,
        return_convergence_delta: bool = False,
    ) -> Any:
        """Compute the relevance of the pixels for one class per image.

        Args:
            inputs: Images as the model takes them, shape (N, channels, height, width). From a numpy array, numpy arrays
                are returned.
            target: One class for all images, or one per image as a list or a tensor of shape (N,). Unlike in Captum,
                None stands for the predicted class.
            baselines: For methods with the option ``baseline``: a number, one image, or one for each image.
            n_steps: For methods with the option ``steps``: how many images on the path.
            internal_batch_size: Most images in one forward pass.
            return_convergence_delta: Also return, for each image, by how much the unscaled relevance misses the
                difference between the scores of image and baseline, shape (N,); for integrated gradients.

        Returns:
            Shape (N, 1, height, width): one map for all channels, which broadcasts over the images. With
            ``return_convergence_delta`` a pair.

        Raises:
            OptionError: The method has no such option; the message names those that have it.
        """
        images = inputs if isinstance(inputs, Tensor) else torch.as_tensor(np.asarray(inputs))
        if isinstance(target, Tensor) and target.numel() == 1:
            target = int(target)
        elif isinstance(target, np.ndarray) and target.size == 1:
            target = int(target.item())
        options = self._options(baselines, n_steps, internal_batch_size)
        if return_convergence_delta:
            self._check_completeness()
        pieces = []
        for piece, chosen, given in _pieces(images, target, options):
            explanation = explain(self.model, piece, self.method, target=chosen, **given)
            maps = as_maps(explanation)[:, None] if self.scaled else explanation.grid
            pieces.append((maps, convergence_delta(explanation)) if return_convergence_delta else (maps,))
        results: tuple[Any, ...] = tuple(torch.cat(parts) for parts in zip(*pieces, strict=True))
        if not isinstance(inputs, Tensor):
            results = tuple(np.asarray(one.detach().cpu().numpy()) for one in results)
        return results if return_convergence_delta else results[0]

    def _options(self, baselines: Baselines, n_steps: int | None, batch_size: int | None) -> dict[str, Any]:
        options = dict(self.options)
        for argument, value, option in (("baselines", baselines, "baseline"), ("n_steps", n_steps, "steps")):
            if value is None:
                continue
            if option not in find(self.method)[2]:
                having = ", ".join(m.name for m in METHODS.values() if option in m.options)
                raise OptionError(
                    f"{self.method} takes no {argument}: it has no option {option!r}; methods that have it: {having}"
                )
            options[option] = value
        if batch_size is not None:
            options["batch_size"] = batch_size
        return options

    def _check_completeness(self) -> None:
        _, method, chosen = find(self.method, {k: v for k, v in self.options.items() if k in find(self.method)[2]})
        if method.name not in COMPLETE or chosen.get("reduce") != "sum":
            raise OptionError(
                f"{self.method} has no convergence delta: its relevance is not claimed to add up to a difference of "
                f"scores; {', '.join(COMPLETE)} with reduce='sum' has one"
            )


def _pieces(images: Tensor, target: Target, options: dict[str, Any]) -> Iterator[tuple[Tensor, Target, dict[str, Any]]]:
    """The images with their targets and options; in batches where each image has a baseline of its own."""
    size, baseline = options.get("batch_size"), options.get("baseline")
    per_image = isinstance(baseline, Tensor | np.ndarray) and baseline.ndim == images.dim() and len(baseline) > 1
    if not per_image or size is None or size >= len(images):
        yield images, target, options
        return
    if size < 1:
        raise OptionError(f"internal_batch_size={size} must be at least 1")
    each = isinstance(target, list | tuple | Tensor | np.ndarray) and len(target) == len(images)
    for begin in range(0, len(images), size):
        piece = slice(begin, begin + size)
        chosen = target[piece] if each else target  # type: ignore[index]
        yield images[piece], chosen, {**options, "baseline": baseline[piece]}  # type: ignore[index]


def convergence_delta(explanation: Explanation) -> Tensor:
    """By how much integrated gradients miss completeness, shape (N,), as Captum computes it.

    The sum of the unscaled relevance, less the difference between the scores of image and baseline.
    """
    source, options = explanation.source, explanation.options
    images = source.model_inputs.image if isinstance(source, MapSource) else None
    if images is None:
        raise InputError("these maps have no model to be evaluated on: pass what vitrail.explain returned for images")
    start = torch.as_tensor(options["baseline"]).to(images).expand_as(images)
    return explanation.grid[:, 0].sum((1, 2)) - (_scores(explanation, images) - _scores(explanation, start))


def _scores(explanation: Explanation, images: Tensor) -> Tensor:
    """The first target's score of images in place of those that were explained, shape (N,)."""
    source, targets = explanation.source, explanation.targets
    assert isinstance(source, MapSource)
    values = []
    for begin in range(0, len(images), MOST):
        piece = slice(begin, begin + MOST)
        inputs = source.model_inputs.select(piece)
        assert inputs.image is not None
        one = forward_only(source.loaded.module, inputs.swap(inputs.image, images[piece]), source.structure)
        if source.target is not None:
            value = source.target(one.output)
            values.append(value if value.dim() == 1 else value[:, 0])
        else:
            assert one.logits is not None and targets is not None  # noqa: PT018
            kind, groups = explanation.options["score"], explanation.groups
            scores = class_scores(one.logits, kind, groups, explanation.scores)
            values.append(scores.gather(1, targets[piece])[:, 0])
    return torch.cat(values)


def as_maps(attributions: Tensor | ArrayLike | Explanation, sign: Sign = "keep") -> Tensor:
    """Convert attributions to the shape that `vitrail.scores` takes.

    Args:
        attributions: Captum's attributions, shape (N, channels, height, width), whose channels are summed;
            pytorch-grad-cam's maps, an array of shape (N, height, width); a single map (height, width); or an
            `Explanation` with one target.
        sign: "keep" keeps the values, "positive" sets negative ones to 0, "abs" takes magnitudes. Applied after the
            sum over channels.

    Returns:
        Shape (N, height, width), floating point, on the same device.

    Raises:
        InputError: The shape is none of these, the `Explanation` has several targets, or ``sign`` is unknown.

    Example:
        >>> as_maps(torch.tensor([[[[1.0]], [[-3.0]], [[1.0]]]])), as_maps(np.ones((2, 4, 4))).shape
        (tensor([[[-1.]]]), torch.Size([2, 4, 4]))
    """
    if isinstance(attributions, Explanation):
        if attributions.maps.dim() != 4 or attributions.maps.shape[1] != 1:
            raise InputError(
                f"the explanation has maps of shape {tuple(attributions.maps.shape)}, expected (N, 1, height, width): "
                "pass the maps of one target, as in maps[:, k]"
            )
        maps = attributions.maps[:, 0]
    else:
        maps = attributions if isinstance(attributions, Tensor) else torch.as_tensor(np.asarray(attributions))
    if maps.dim() not in (2, 3, 4):
        raise InputError(
            f"attributions have shape {tuple(maps.shape)}, expected (N, channels, height, width), (N, height, width) "
            "or (height, width)"
        )
    maps = maps.detach()
    maps = maps if maps.is_floating_point() else maps.float()
    maps = maps.sum(1) if maps.dim() == 4 else maps
    maps = maps[None] if maps.dim() == 2 else maps
    if sign == "positive":
        return maps.clamp_min(0)
    if sign == "abs":
        return maps.abs()
    if sign != "keep":
        raise InputError(f"sign={sign!r} is unknown: use 'keep', 'positive' or 'abs'")
    return maps
