"""Holding a model still: everything that touches it is put back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from vitrail.errors import ModelError


def unwrap(model: nn.Module) -> nn.Module:
    """The module inside ``torch.compile`` and ``DataParallel`` wrappers.

    Attention can be seen only where torch's functions are called one by one, so wrappers that compile or
    scatter are stepped over; the parameters are the same objects.

    Example:
        >>> inner = nn.Linear(2, 2)
        >>> unwrap(nn.DataParallel(inner)) is inner
        True
    """
    while True:
        if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
            model = model.module
        elif isinstance(getattr(model, "_orig_mod", None), nn.Module):
            model = model._orig_mod  # type: ignore[assignment]  # noqa: SLF001
        else:
            break
    if isinstance(model, torch.jit.ScriptModule):
        raise ModelError(
            "this is a TorchScript module, whose functions cannot be seen from Python: "
            "pass the nn.Module it was scripted or traced from"
        )
    return model


@contextmanager
def frozen(model: nn.Module) -> Iterator[nn.Module]:
    """Hold a model in evaluation mode with frozen parameters and no compiled code; put all of it back on leaving.

    Parameters are frozen so that the graph starts at the first tensor somebody asked the gradient of, and
    nothing before it is kept. The compiler is told to stand aside because compiled code calls no Python
    function a mode could see; the fused path of ``nn.MultiheadAttention`` for the same reason.

    Example:
        >>> layer = nn.Linear(2, 2).train()
        >>> with frozen(layer) as held:
        ...     held.training, held.weight.requires_grad
        (False, False)
        >>> layer.training, layer.weight.requires_grad
        (True, True)
    """
    modules = list(model.modules())
    training = [module for module in modules if module.training]
    trainable = [p for module in modules for p in module._parameters.values() if p is not None and p.requires_grad]  # noqa: SLF001
    fast_path = torch.backends.mha.get_fastpath_enabled()
    try:
        torch.backends.mha.set_fastpath_enabled(False)
        for module in training:
            module.training = False
        for parameter in trainable:
            parameter.requires_grad_(False)
        with torch.compiler.set_stance("force_eager"), torch.inference_mode(False), torch.enable_grad():
            yield model
    finally:
        torch.backends.mha.set_fastpath_enabled(fast_path)
        for module in training:
            module.training = True
        for parameter in trainable:
            parameter.requires_grad_(True)
