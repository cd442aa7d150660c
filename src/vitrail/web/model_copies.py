"""Copies of a model for several threads, and for checks, which change weights for a moment."""

from __future__ import annotations

import copy
import logging
from dataclasses import replace

from torch import Tensor, nn

from vitrail.capture.frozen import unwrap
from vitrail.capture.inputs import ModelInputs
from vitrail.errors import VitrailError
from vitrail.models import LoadedModel
from vitrail.scores.sanity import randomisation_steps

log = logging.getLogger("vitrail.web")


def copy_modules(loaded: LoadedModel) -> LoadedModel:
    """Copy a model's modules but not its weights, so that another thread can use it at the same time.

    One thread at a time holds a module, see `vitrail.capture.frozen`. A model that cannot be copied is returned as it
    is: its threads then wait for each other.

    Example:
        >>> layer = nn.Linear(2, 2)
        >>> copied = copy_modules(LoadedModel(layer)).module
        >>> copied is layer, copied.weight.data_ptr() == layer.weight.data_ptr()
        (False, True)
    """
    # Parameters of their own, since those of the model may be frozen and restored while the copy is used.
    shared: dict[int, Tensor] = {
        id(p): nn.Parameter(p.detach(), requires_grad=False) for p in loaded.module.parameters()
    }
    shared |= {id(buffer): buffer for buffer in loaded.module.buffers()}
    try:
        return replace(loaded, module=copy.deepcopy(loaded.module, shared))
    except Exception:  # modules of users may hold anything
        log.debug("the model cannot be copied; threads take turns", exc_info=True)
        return loaded


def copy_for_checks(loaded: LoadedModel, sample: Tensor | ModelInputs) -> LoadedModel | None:
    """Copy a model's modules, and the weights that a check randomises: those of the head and of the last block.

    Other threads read the weights of the model while a check runs.

    Returns:
        The copy, or None for a model that cannot be copied.

    Example:
        >>> import torch
        >>> from vitrail.testing import tiny_vit
        >>> loaded = LoadedModel(tiny_vit())
        >>> copied = copy_for_checks(loaded, torch.randn(1, 3, 32, 32)).module
        >>> own = [a.data_ptr() != b.data_ptr() for a, b in zip(copied.parameters(), loaded.module.parameters())]
        >>> own[0], own[-1]
        (False, True)
    """
    copied = copy_modules(loaded)
    if copied is loaded:
        return None
    module = unwrap(copied.module)
    parameters = dict(module.named_parameters())
    try:
        steps = randomisation_steps(module, sample)[:2]
    except VitrailError:  # it is called through another module, as detectors that read texts
        return None
    for step in steps:
        for name in step.parameters:
            parameters[name].data = parameters[name].data.clone()
    return copied
