"""Describe the tensors of a call: by the user's word, by their names and shapes, and by their effect."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from torch import Tensor, nn

from vitrail import fast
from vitrail.capture.input_roles import EXPLAINED, MASK, ROLES, SHARED, InputTensor, axes_of, describe_tensors
from vitrail.capture.inputs import ModelInputs
from vitrail.errors import InputError
from vitrail.inputs.input_effects import SHARED_BY_ALL, measure_effects
from vitrail.inputs.signal_inputs import model_axes

#: Number of axes of roles that have a fixed one.
_AXES = {"image": 4, "video": 5, "patches": 3, "tokens": 2, "spectrogram": 3, "features": 2}
#: Names of tensors that go with the images of their own example.
_OF_IMAGES = ("pixel_", "spatial_shapes", "image_sizes", "image_grid", "video_grid", "patch_")


def describe_inputs(
    model: nn.Module, model_inputs: ModelInputs, roles: Mapping[str, str] | None = None, of: str | None = None
) -> ModelInputs:
    """The inputs with the role of every tensor, and whether it is per example.

    A role that the user gives holds. Otherwise names and shapes decide. Where they leave open whether a tensor is per
    example, as for the texts beside images, its effect decides: see `measure_effects`.

    Args:
        model: The model, on the device of the inputs.
        model_inputs: The inputs.
        roles: Roles by name, for tensors that the user describes.
        of: Name of the tensor that is explained.

    Raises:
        InputError: A name does not exist, or a role does not fit its tensor.

    Example:
        >>> import torch
        >>> call = ModelInputs((), {"image": torch.rand(2, 3, 8, 8), "scale": torch.rand(2)})
        >>> [str(one) for one in describe_inputs(nn.Identity(), call, {"scale": "shared"}).description][1]
        'shared (axis 0), shared by all examples; known by its argument'
    """
    given = dict(roles or {})
    _check_names(model_inputs, given, of)
    described = list(describe_tensors(model_inputs.named, of))
    if model_inputs.described is not None and of is None:
        described = list(model_inputs.described)
    model_inputs = replace(model_inputs, of=of)
    for i, (one, tensor) in enumerate(zip(described, model_inputs.tensors, strict=True)):
        if one.name in given:
            described[i] = _as_given(one, tensor, given[one.name])
        described[i] = model_axes(described[i], tensor, model)
    described = _batch_axes(described, model_inputs, given)
    model_inputs = replace(model_inputs, described=tuple(described))
    questions = open_questions(model_inputs, given)
    if questions:
        for i, effect in _effects(model, model_inputs, questions).items():
            _apply(described, model_inputs.tensors, i, effect)
        model_inputs = replace(model_inputs, described=tuple(described))
    return model_inputs


def _effects(model: nn.Module, model_inputs: ModelInputs, questions: list[int]) -> dict[int, str]:
    """The effects of the tensors in question; while the model is promised not to change, shared ones are measured once.

    A tensor whose change was seen in another example is shared, whatever the input. That none was seen may be due to
    this input, so it is measured again with the next one.
    """
    known: dict[object, dict[int, str]] = fast.call_cache("input effects", model, lambda _: {})
    key = model_inputs.signature, model_inputs.shape, tuple(questions)
    if key in known:
        return known[key]
    effects = measure_effects(model, model_inputs, questions)
    if [effects.get(i) for i in questions] == [SHARED_BY_ALL] * len(questions):
        known[key] = effects
    return effects


def open_questions(model_inputs: ModelInputs, given: Mapping[str, str] = {}) -> list[int]:
    """Indices of the tensors whose names and shapes do not say whether they are per example."""
    described, tensors, main = model_inputs.description, model_inputs.tensors, model_inputs.explained
    if main is None:
        return []
    questions = []
    for i, (one, tensor) in enumerate(zip(described, tensors, strict=True)):
        if i == main or not one.per_example or one.name in given:
            continue
        beside_text = tensor.shape[:2] == tensors[main].shape[:2] and tensors[main].dim() == 2
        beside_image = one.key.startswith(_OF_IMAGES) and one.role != "image"
        follows = any(_follows(tensors, i, k) for k in range(len(tensors)) if described[k].role == "tokens")
        if not (beside_text or beside_image or follows):
            questions.append(i)
    return questions


def _follows(tensors: list[Tensor], i: int, tokens: int) -> bool:
    """Whether a tensor is a mask or the types of some tokens, by its shape."""
    both = tensors[i], tensors[tokens]
    return i != tokens and not both[0].is_floating_point() and both[0].shape == both[1].shape


def _apply(described: list[InputTensor], tensors: list[Tensor], index: int, effect: str) -> None:
    """Note what was measured of a tensor, and of the masks that go with it."""
    companions = [i for i in range(len(tensors)) if described[index].role == "tokens" and _follows(tensors, i, index)]
    for i in (index, *companions):
        shared = effect == SHARED_BY_ALL
        role = SHARED if shared and i == index else described[i].role
        axes = axes_of(SHARED, tensors[i]) if shared else described[i].axes
        described[i] = replace(described[i], role=role, axes=axes, per_example=not shared, known_by="effect")


def _check_names(model_inputs: ModelInputs, given: Mapping[str, str], of: str | None) -> None:
    names = [name for name, _ in model_inputs.named]
    listed = ", ".join(names)
    for name, role in given.items():
        if name not in names:
            raise InputError(f"roles= names {name!r}, which is not a tensor of this call: it has {listed}")
        if role not in ROLES:
            raise InputError(f"roles={{{name!r}: {role!r}}}: the roles are {', '.join(ROLES)}")
    if of is not None and of not in names:
        raise InputError(f"of={of!r} is not a tensor of this call: it has {listed}")


def _as_given(one: InputTensor, tensor: Tensor, role: str) -> InputTensor:
    axes = _AXES.get(role, tensor.dim())
    if axes != tensor.dim():
        raise InputError(
            f"roles={{{one.name!r}: {role!r}}}: a tensor with this role has {axes} axes, and {one.name} has shape "
            f"{tuple(tensor.shape)}"
        )
    return replace(one, role=role, axes=axes_of(role, tensor), known_by="argument")


def _batch_axes(described: list[InputTensor], model_inputs: ModelInputs, given: Mapping[str, str]) -> list[InputTensor]:
    """Which tensors have one entry for each example, after roles were given."""
    if not given and model_inputs.of is None:
        return described
    names = [one.name for one in described]
    roles = [one.role for one in described]
    main = names.index(model_inputs.of) if model_inputs.of is not None else None
    if main is None:
        order = sorted((EXPLAINED.index(role), i) for i, role in enumerate(roles) if role in EXPLAINED)
        main = order[0][1] if order else None
    elif roles[main] not in EXPLAINED:
        stated = f"; pass roles={{{model_inputs.of!r}: 'tokens'}} if that is wrong" if roles[main] != MASK else ""
        raise InputError(
            f"of={model_inputs.of!r} is described as {roles[main]}, which cannot be explained: it must be one of "
            f"{', '.join(EXPLAINED)}{stated}"
        )
    if main is None:
        return described
    rows = int(model_inputs.tensors[main].shape[0])
    found = []
    for one, tensor in zip(described, model_inputs.tensors, strict=True):
        own = one.role != SHARED and tensor.dim() > 0 and int(tensor.shape[0]) == rows
        found.append(replace(one, per_example=own))
    return found
