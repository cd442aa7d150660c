"""Perturbation tests of many methods at once, with every distinct image evaluated once.

Forward passes are shared exactly:

- one pass of the unperturbed image serves all methods, removal orders, targets and scores;
- the image with all pixels removed is one pass for the whole data set where the fill is the same for all images, and
  one pass per image under a blur;
- levels that several presets have in common are run once (the 10 % grid is part of the 5 % grid; deletion with a
  constant fill is MoRF, insertion into it LeRF);
- where the label is the predicted class, or a method is class-agnostic, one map serves both targets;
- maps of one image with the same order of pixels, whatever their method and class, give the same perturbed images,
  which are evaluated once.

The levels of a curve are all evaluated, since its record contains the model's output at each of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from vitrail import fast
from vitrail.capture.inputs import ModelInputs
from vitrail.capture.output_tensors import OutputReading, fields_of
from vitrail.capture.outputs import class_logits
from vitrail.capture.removal import TokenDropper
from vitrail.capture.score_function import class_probabilities
from vitrail.errors import InputError, OptionError, TargetError
from vitrail.models.class_group import ClassGroup
from vitrail.models.loaded import LoadedModel, describe
from vitrail.models.preprocess import Preprocess
from vitrail.scores.batch_evaluation import BatchEvaluation, MapsByMethod
from vitrail.scores.fills import TOKENS, Normalisation
from vitrail.scores.perturbation import PerturbationRecords
from vitrail.scores.presets import Preset, find_presets
from vitrail.scores.ranks import TieOrder


class Evaluator:
    """Runs perturbation presets on a model; call it with images and maps, once per batch.

    Args:
        model: A model that returns class scores for a batch of images, or a `LoadedModel`. It is in evaluation mode
            during a call and not changed otherwise. Its weights must not change between calls, since its output for
            the empty image is cached.
        presets: Names or presets; ``chefer21-mean`` is chefer21 with another fill.
        batch: Most images in one forward pass; it bounds the memory.
        precision: Run the model under autocast in this precision. Softmax and log are in float32.
        ties: Order of tied pixels; see `vitrail.scores.ranks`.
        seed: Seed of the tie order and of the noise fill.
        preprocess: Normalisation of the images, where the model does not state it.
        compiled: Run the model through ``torch.compile``, which fuses its small operations. Every forward pass then
            has ``batch`` images, a smaller one being padded, so that it is compiled once. Outputs differ from those
            of the plain model in the last bits. Where compiling fails, the plain model is used, with a warning.
        advance: Called with the number of images after each forward pass, for progress bars.
        scores: What turns the model's class scores into probabilities: "softmax" or "sigmoid"; by default what the
            model states.

    Example:
        >>> from vitrail.models.preprocess import Preprocess
        >>> from vitrail.testing import tiny_vit
        >>> preprocess = Preprocess((32, 32), (0.5,) * 3, (0.5,) * 3)
        >>> evaluate = Evaluator(tiny_vit(), "chefer21", preprocess=preprocess)
        >>> images, maps = torch.randn(4, 3, 32, 32), {"random": torch.rand(4, 32, 32)}
        >>> records = evaluate(images, maps, labels=torch.tensor([0, 1, 2, 3]))
        >>> records.forwards.total, len(records.curves)
        (76, 2)
    """

    def __init__(
        self,
        model: nn.Module | LoadedModel,
        presets: str | Preset | Iterable[str | Preset] = "chefer21",
        *,
        batch: int = 256,
        precision: torch.dtype | None = None,
        ties: TieOrder = "random",
        seed: int = 0,
        preprocess: Preprocess | None = None,
        compiled: bool = False,
        advance: Callable[[int], None] = lambda _: None,
        scores: str | None = None,
    ) -> None:
        if batch < 1:
            raise OptionError(f"batch={batch} must be at least 1")
        loaded = describe(model)
        known = preprocess or (loaded.preprocess if isinstance(loaded.preprocess, Preprocess) else None)
        self.model, self.presets, self.batch = loaded.module, find_presets(presets), batch
        self.precision, self.ties, self.seed = precision, ties, seed
        self.normalisation = Normalisation() if known is None else Normalisation(known.mean, known.std)
        self.advance = advance
        self.scores = OutputReading(scores=loaded.scores if scores is None else scores).scores
        self.settings = {
            "model": loaded.name, "precision": str(precision), "ties": ties, "seed": seed,
            "mean": self.normalisation.mean, "std": self.normalisation.std,
        } | ({"compiled": True} if compiled else {})  # fmt: skip
        self.settings |= {} if self.scores is None else {"scores": self.scores}
        self.empty_log_probs: dict[Any, Tensor] = {}
        self.token_dropper: TokenDropper | None = None
        self.compiled_model = fast.CompiledModel(self.model, batch) if compiled else None
        self.fast_passes = fast.FastPasses(self.model, precision, compiled)

    def __call__(
        self,
        images: Tensor,
        maps: MapsByMethod,
        *,
        labels: Tensor | None = None,
        label_maps: MapsByMethod | None = None,
        ids: Sequence[str] | None = None,
        predicted: Tensor | None = None,
        groups: Sequence[ClassGroup] = (),
    ) -> PerturbationRecords:
        """Evaluate all presets on a batch.

        Args:
            images: Normalised for the model, shape (b, channels, height, width).
            maps: By method, maps of the predicted class, shape (b, height, width) or (b, 1, height, width).
            labels: True classes, shape (b,); without them there is no accuracy.
            label_maps: By method, maps of the true class. Where that is the predicted class, the map of ``maps`` is
                used for both. For a class-agnostic method pass the same tensor object as in ``maps``.
            ids: Unique ids of the images; "0", "1", … by default.
            predicted: The class that ``maps`` explain, shape (b,), where it may differ from the model's prediction
                here: in half precision a near tie can go the other way.
            groups: Groups of classes that maps explain: for a model of C classes, C + i in ``predicted`` or ``labels``
                is ``groups[i]``, as in ``Explanation.targets``. The score of a group is the probability of its
                classes together; a prediction is right if it is one of them.

        Returns:
            Records on the CPU, with the number of forward passes.
        """
        label_maps = label_maps or {}
        names = tuple(map(str, range(len(images)))) if ids is None else tuple(ids)
        self._check(images, maps, label_maps, labels, names)
        images = ModelInputs((images,)).onto(self.model).args[0]
        if any(TOKENS in preset.fills for preset in self.presets) and self.token_dropper is None:
            self.token_dropper = TokenDropper(self.model, images)
        true = torch.full((len(images),), -1) if labels is None else labels
        class_agnostic = frozenset(name for name, values in label_maps.items() if maps.get(name) is values)
        parts = []
        for start in range(0, len(images), self.batch):
            rows = slice(start, start + self.batch)
            batch_maps, batch_label_maps = (
                {name: values[rows] for name, values in given.items()} for given in (maps, label_maps)
            )
            explained = None if predicted is None else predicted[rows].to(images.device)
            with _evaluation_mode(self.model), torch.inference_mode():
                evaluation = BatchEvaluation(self, images[rows], true[rows].to(images.device), explained, groups)
                parts.append(evaluation.run(batch_maps, batch_label_maps, class_agnostic, names[rows]))
        return PerturbationRecords.join(parts)

    def _check(
        self,
        images: Tensor,
        maps: MapsByMethod,
        label_maps: MapsByMethod,
        labels: Tensor | None,
        ids: Sequence[str],
    ) -> None:
        if images.dim() != 4 or not len(images):
            raise InputError(f"images must have shape (b, channels, height, width), got {tuple(images.shape)}")
        if not maps and not label_maps:
            raise InputError("no maps to score: pass maps={'method': tensor}")
        if label_maps and labels is None:
            raise InputError("label_maps explain the true classes, which are unknown: pass labels=")
        if not maps and not any("label" in preset.explains for preset in self.presets):
            raise InputError("these presets score maps of the predicted class only: pass maps=")
        if len(ids) != len(images):
            raise InputError(f"expected one id per image, got {len(ids)} ids for {len(images)} images")
        if labels is not None and len(labels) != len(images):
            raise InputError(f"expected one label per image, got {len(labels)} labels for {len(images)} images")
        expected = ((len(images), *images.shape[2:]), (len(images), 1, *images.shape[2:]))
        for name, values in (*maps.items(), *label_maps.items()):
            if tuple(values.shape) not in expected:
                raise InputError(f"maps of {name} must have shape {expected[0]}, got {tuple(values.shape)}")

    def log_probs(self, images: Tensor, keep: Tensor | None = None) -> Tensor:
        """Run the model; log-probabilities in float32, shape (N, C). With ``keep``, of these patches only."""
        with self.fast_passes.on(images):
            if keep is None or self.token_dropper is None:
                output = (self.compiled_model or self.model)(images)
            else:
                output = self.token_dropper(images, keep)
        logits = class_logits(self.model, output)
        if logits is None:
            raise TargetError(f"perturbation tests need class scores, but the model returned {fields_of(output)}")
        self.advance(len(images))
        return class_probabilities(self.model, logits[: len(images)], self.scores, log=True)


@contextmanager
def _evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Set a model to evaluation mode; unlike ``frozen``, this keeps compiled code and fused kernels."""
    training = [module for module in model.modules() if module.training]
    try:
        for module in training:
            module.training = False
        yield
    finally:
        for module in training:
            module.training = True
