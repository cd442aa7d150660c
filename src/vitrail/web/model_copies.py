"""Copies of a model for several threads: the same weights in modules of their own."""

from __future__ import annotations

import copy
import logging
from dataclasses import replace

from torch import Tensor, nn

from vitrail.models import LoadedModel

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
