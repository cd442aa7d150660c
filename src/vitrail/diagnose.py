"""A look inside a model for somebody who wants to know whether Vitrail understands it."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from vitrail.capture.forward import forward_pass
from vitrail.capture.frozen import frozen, unwrap
from vitrail.capture.inputs import ModelInputs, any_output
from vitrail.capture.structure import ModelStructure, read_structure
from vitrail.capture.trace import ALL
from vitrail.errors import VitrailError
from vitrail.explain import explain
from vitrail.explanation import versions
from vitrail.methods import METHODS, Method
from vitrail.models import LoadedModel
from vitrail.models.preprocess import Preprocess


@dataclass(frozen=True)
class Checkup:
    """What was found.

    Attributes:
        rows: (what, value) pairs.
        verdicts: (method, whether it works, remark) for every method.
    """

    rows: tuple[tuple[str, str], ...]
    verdicts: tuple[tuple[str, bool, str], ...]


def examine(about: LoadedModel) -> Checkup:
    """Let random noise through a model: structure, agreement of the opened with the bare model, and every method.

    Example:
        >>> from vitrail.models import describe
        >>> from vitrail.testing import tiny_vit
        >>> about = Loaded(tiny_vit(), Preprocess((32, 32)), name="tiny")
        >>> found = examine(about)
        >>> dict(found.rows)["tokens"], all(works for _, works, _ in found.verdicts)
        ('17 = 1 prefix + 4×4 patches', True)
    """
    model = unwrap(about.module)
    prepare = about.preprocess if isinstance(about.preprocess, Preprocess) else Preprocess((224, 224))
    generator = torch.Generator().manual_seed(0)
    model_inputs = ModelInputs((torch.randn(1, len(prepare.mean), *prepare.size, generator=generator),)).onto(model)
    target = None if _has_scores(model, model_inputs) else _first_outputs
    structure = read_structure(model, model_inputs, None, target)
    rows = structure.rows()
    if structure.kind == "plain":
        with frozen(model), torch.no_grad():
            bare = any_output(model_inputs.into(model))
        with forward_pass(model, model_inputs, structure, [{"A": ALL, "dA": ALL}]) as one:
            opened = any_output(one.output).detach()
        rows.append(("opened = bare", f"largest difference of the outputs {float((bare - opened).abs().max()):.1e}"))
    height, width = prepare.size
    rows.append(("images", f"{height}×{width}, mean {prepare.mean}, deviation {prepare.std}; {prepare.origin}"))
    rows.append(("classes", f"{len(about.classes)} names known" if about.classes else "names unknown"))
    rows.append(("versions", ", ".join(f"{k} {v}" for k, v in versions().items())))
    return Checkup(
        tuple(rows), tuple(_try(method, about, model_inputs, target, structure) for method in METHODS.values())
    )


def _has_scores(model: torch.nn.Module, model_inputs: ModelInputs) -> bool:
    from vitrail.capture.inputs import logits_of

    with frozen(model), torch.no_grad():
        output = model_inputs.into(model)
    return logits_of(output) is not None and not hasattr(model, "encode_text")


def _first_outputs(output: Any) -> Tensor:
    """Something to differentiate in a model without classes."""
    value = any_output(output)
    return value.flatten(1)[:, :1]


def _try(
    method: Method, about: LoadedModel, model_inputs: ModelInputs, target: Any, structure: ModelStructure
) -> tuple[str, bool, str]:
    try:
        if method.family == "perturbation":
            method.check(structure, method.options)
            return method.name, True, "by what was found; not tried, since it looks at many pictures"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = explain(about, model_inputs.args[0], method.name, target=target, **method.quick)
    except VitrailError as error:
        return method.name, False, str(error)
    remark = "no relevance on noise, which may be right" if bool(found.flat.any()) else f"{found.seconds:.2f} s"
    settings = ", ".join(f"{k}={v}" for k, v in method.quick.items())
    return method.name, True, f"{remark} with {settings}" if settings else remark
