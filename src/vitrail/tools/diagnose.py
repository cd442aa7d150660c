"""Check a model: its structure, numeric checks of it, and which methods work on it."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import nn

from vitrail.capture.forward import forward_pass
from vitrail.capture.frozen import frozen, unwrap
from vitrail.capture.inputs import ModelInputs
from vitrail.capture.model_call import run_model
from vitrail.capture.model_structure import ModelStructure
from vitrail.capture.output_tensors import OutputReading, any_output
from vitrail.capture.structure import read_structure
from vitrail.capture.trace import ALL
from vitrail.errors import VitrailError
from vitrail.inputs.output_description import describe_output
from vitrail.inputs.random_inputs import output_target, random_inputs, vocabulary_size
from vitrail.inputs.user_inputs import Inputs, to_model_inputs
from vitrail.methods import METHODS, Method
from vitrail.models import LoadedModel
from vitrail.models.preprocess import Preprocess
from vitrail.pipeline.explain import explain
from vitrail.pipeline.explanation import Explanation
from vitrail.pipeline.provenance import versions


@dataclass(frozen=True)
class Diagnosis:
    """Structure of a model, numeric checks of it, and which methods work on it.

    Attributes:
        properties: (name, value) pairs for display: attention, tokens, readout, preprocessing, versions and so on.
        checks: (name, result) of each numeric check of the structure.
        methods: (name, whether it works, remark) of every method.
    """

    properties: tuple[tuple[str, str], ...]
    checks: tuple[tuple[str, str], ...]
    methods: tuple[tuple[str, bool, str], ...]

    def _repr_html_(self) -> str:
        """Display in notebooks: three tables."""
        from vitrail.viz.templating import render

        tables = (
            ("Model", (), self.properties),
            ("Checks of its structure", ("check", "result"), self.checks),
            ("Methods", ("method", "works", "remark"), self.methods),
        )
        return render("diagnosis.html", tables=tables)


def diagnose(model: LoadedModel, inputs: Inputs = None, **reading: Any) -> Diagnosis:
    """Run a model on random noise: describe its inputs and outputs, find its structure, and try every method.

    The checks are those of `vitrail.ModelStructure`, and a comparison of the outputs with and without explicit
    attention. Perturbation methods are not run, only checked against the structure.

    Args:
        model: The model.
        inputs: Inputs as `vitrail.explain` takes them; by default random ones, images or texts or both.
        **reading: ``roles``, ``of``, ``output`` and ``scores`` of `vitrail.explain`.

    Example:
        >>> from vitrail.testing import tiny_vit
        >>> diagnosis = diagnose(LoadedModel(tiny_vit(), Preprocess((32, 32)), name="tiny"))
        >>> dict(diagnosis.properties)["tokens"], [name for name, works, _ in diagnosis.methods if not works]
        ('17 = 1 prefix + 4×4 patches', ['vit_shapley'])
    """
    module = unwrap(model.module)
    parts = OutputReading(reading.get("output"), reading.get("scores"))
    call_inputs = call_of(random_inputs(model)) if inputs is None else inputs
    model_inputs = to_model_inputs(
        call_inputs, replace(model, module=module), reading.get("roles"), reading.get("of"), parts
    )
    target = output_target(module, model_inputs)
    structure = read_structure(module, model_inputs, None, target)
    checks = [(check.name, str(check)) for check in structure.checks]
    if structure.kind == "plain":
        difference = _explicit_attention_error(module, model_inputs, structure)
        checks.append(("explicit attention", f"largest difference of the outputs {difference:.1e}"))
    classes = f"{len(model.classes)} names known" if model.classes else "names unknown"
    tokens = vocabulary_size(module)
    with frozen(module), torch.no_grad():
        output = run_model(module, model_inputs)
    described = describe_output(module, output, structure.outputs, reading.get("scores"))
    properties = [
        *structure.rows(),
        *((f"input {one.name}", str(one)) for one in model_inputs.description),
        *described.rows(),
        ("causal", _causal(module, model_inputs, structure)),
        ("images", _preprocessing(model)) if tokens is None else ("vocabulary", f"{tokens} tokens"),
        ("classes", classes),
        ("versions", ", ".join(f"{name} {version}" for name, version in versions().items())),
    ]
    call = partial(explain, model, call_inputs, target=target, **reading)
    methods = tuple(_check(method, model, call, structure) for method in METHODS.values())
    return Diagnosis(tuple(properties), tuple(checks), methods)


def call_of(model_inputs: ModelInputs) -> Any:
    """Inputs for one call as `vitrail.explain` takes them."""
    return model_inputs.args[0] if model_inputs.args else dict(model_inputs.kwargs)


def _causal(module: nn.Module, model_inputs: ModelInputs, structure: ModelStructure) -> str:
    """Whether tokens attend to later ones, measured on one pass."""
    if structure.kind != "plain":
        return "not measured: its attention layers form no single chain"
    with forward_pass(module, model_inputs, structure, [{"A": ALL}]) as one:
        square = [block.A for block in one.blocks if block.A.shape[-1] == block.A.shape[-2]]
        later = max((float(A.detach().triu(1).abs().max()) for A in square), default=1.0)
    return "yes: no token attends to a later one" if later == 0 else "no"


def _preprocessing(model: LoadedModel) -> str:
    """Size and normalisation of a model's images."""
    if not isinstance(model.preprocess, Preprocess):
        return "preprocessing unknown"
    height, width = model.preprocess.size
    return f"{height}×{width}, mean {model.preprocess.mean}, std {model.preprocess.std}; {model.preprocess.origin}"


def _explicit_attention_error(module: nn.Module, model_inputs: ModelInputs, structure: ModelStructure) -> float:
    """Largest absolute difference of the outputs with and without explicit attention."""
    with frozen(module), torch.no_grad():
        expected = any_output(model_inputs.into(module))
    with forward_pass(module, model_inputs, structure, [{"A": ALL, "dA": ALL}]) as one:
        explicit = any_output(one.output).detach()
    return float((expected - explicit).abs().max())


def _check(
    method: Method, model: LoadedModel, call: Callable[..., Explanation], structure: ModelStructure
) -> tuple[str, bool, str]:
    """Name of a method, whether it works on the model, and its run time or the reason why it does not."""
    try:
        if method.family == "perturbation":
            method.check(structure, method.options, model=model.module)
            return method.name, True, "not run: it evaluates many perturbed inputs"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            explanation = call(method=method.name, **method.quick)
    except VitrailError as error:
        return method.name, False, str(error)
    constant = bool(explanation.constant.any())
    remark = "constant map, which is possible on noise" if constant else f"{explanation.seconds:.2f} s"
    options = ", ".join(f"{k}={v}" for k, v in method.quick.items())
    return method.name, True, f"{remark} with {options}" if options else remark
