"""The prepared model: the model, its inputs on its device and its structure, checked against the request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import nn

from vitrail.capture.finite import check_finite
from vitrail.capture.forward import forward_only
from vitrail.capture.frozen import unwrap
from vitrail.capture.inputs import ModelInputs
from vitrail.capture.model_structure import ModelStructure
from vitrail.capture.output_tensors import OutputReading
from vitrail.capture.outputs import output_count
from vitrail.capture.score_function import score_function
from vitrail.capture.structure import is_measured_now, read_structure
from vitrail.capture.window_positions import WindowPositions, find_positions, stitched_layout
from vitrail.errors import NotApplicableError, TargetError
from vitrail.inputs.targets import Target, similarity
from vitrail.methods.model_kinds import is_signal
from vitrail.models import LoadedModel, describe
from vitrail.models.loaded import Transform
from vitrail.models.sources import embed_texts
from vitrail.pipeline.method_job import MethodJob
from vitrail.pipeline.request import Request


@dataclass(frozen=True)
class PreparedModel:
    """A model with inputs.

    Attributes:
        loaded: The model, unwrapped, with its preprocessing and class names.
        inputs: Inputs on the model's device.
        structure: The model's structure.
        scores: What turns the class scores into probabilities: "softmax", "sigmoid" or "identity".
        window_positions: Positions of the windows, if their attention is stitched.
    """

    loaded: LoadedModel
    inputs: ModelInputs
    structure: ModelStructure
    scores: str = "softmax"
    window_positions: WindowPositions | None = None

    @property
    def module(self) -> nn.Module:
        """The model."""
        return self.loaded.module

    @property
    def shown_structure(self) -> ModelStructure:
        """The structure whose layout the maps have: that of the stitched windows where requested."""
        if self.window_positions is None:
            return self.structure
        return replace(self.structure, layout=stitched_layout(self.window_positions))

    def with_inputs(self, inputs: ModelInputs) -> PreparedModel:
        """The same model with other inputs."""
        return replace(self, inputs=inputs)


def unwrapped_model(model: nn.Module | LoadedModel, preprocess: Transform | None) -> LoadedModel:
    """The model inside wrappers, with its preprocessing, or the one that was given."""
    loaded = replace(model, module=unwrap(model.module)) if isinstance(model, LoadedModel) else describe(unwrap(model))
    return loaded if preprocess is None else replace(loaded, preprocess=preprocess)


def embedded_target(loaded: LoadedModel, target: Target) -> Target:
    """The target, where texts that were given for a CLIP model are replaced by the similarity to them."""
    if not hasattr(loaded.module, "encode_text") or callable(target):
        return target
    row = target[0] if isinstance(target, list | tuple) and len(target) == 1 else target
    texts = [row] if isinstance(row, str) else row
    if not isinstance(texts, list | tuple) or not texts or not all(isinstance(text, str) for text in texts):
        raise TargetError(
            "a CLIP model has no classes: pass a text, [[text, text]] for several, or "
            "target=vitrail.similarity(text embeddings, labels=texts)"
        )
    return similarity(embed_texts(loaded, texts), labels=texts)


def prepare(
    loaded: LoadedModel, model_inputs: ModelInputs, request: Request, jobs: Sequence[MethodJob]
) -> PreparedModel:
    """Read the model's structure, and refuse what does not fit.

    Raises:
        TargetError: The model returns features and the target is a class.
        NotApplicableError: A method does not apply to the model.
    """
    target = request.target if callable(request.target) else None
    structure = read_structure(loaded.module, model_inputs, request.layout, target)
    prepared = PreparedModel(loaded, model_inputs, structure)
    try:
        return _checked(prepared, request.target, jobs, request.stitch)
    except (NotApplicableError, TargetError):
        if is_measured_now(structure):
            raise
    return measured_again(prepared, request.target, jobs, request.stitch)


def measured_again(prepared: PreparedModel, target: Target, jobs: Sequence[MethodJob], stitch: bool) -> PreparedModel:
    """The same with a structure measured in this call, where that from an earlier call does not hold."""
    function = target if callable(target) else None
    structure = read_structure(prepared.module, prepared.inputs, prepared.structure.given, function, fresh=True)
    return _checked(replace(prepared, structure=structure, window_positions=None), target, jobs, stitch)


def _checked(prepared: PreparedModel, target: Target, jobs: Sequence[MethodJob], stitch: bool) -> PreparedModel:
    """The prepared model, if target and methods apply to it."""
    structure = prepared.structure
    if prepared.inputs.reading == OutputReading():
        _check_outputs(structure, prepared.loaded, target)
    stitch = stitch and structure.kind == "windowed" and not is_signal(structure)
    count, stated = output_count(prepared.module), prepared.inputs.reading.scores
    prepared = replace(prepared, scores=score_function(prepared.module, structure.outputs, stated, count).name)
    _check_methods(jobs, prepared, stitch)
    if not stitch:
        return prepared
    return replace(prepared, window_positions=find_positions(prepared.module, prepared.inputs, structure))


def _check_outputs(structure: ModelStructure, loaded: LoadedModel, target: Target) -> None:
    """Refuse class targets for a model that returns features."""
    if structure.outputs == "features" and not callable(target) and not loaded.classes:
        raise TargetError(
            f"{structure.model} returns features, not class scores: it has no classification head; pass "
            "target=function, from its output to one number per image, or scores='softmax' if they are class scores"
        )


def _check_methods(jobs: Sequence[MethodJob], prepared: PreparedModel, stitch: bool) -> None:
    """Refuse methods that do not apply to the model."""
    module, structure = prepared.module, prepared.structure
    try:
        for job in jobs:
            job.method.check(structure, job.options, stitch, module)
    except NotApplicableError:
        # Where the outputs are not finite, this is the reason that is reported.
        check_finite(module, forward_only(module, prepared.inputs, structure).logits)
        raise
