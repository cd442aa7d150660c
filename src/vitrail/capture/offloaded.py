"""Models whose weights accelerate keeps in another place and loads for each layer's call."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


def offloaded_to(model: nn.Module) -> torch.device | None:
    """The one device on which the layers of an offloaded model run; None for other models.

    Accelerate's hooks load the weights of a layer before its call and release them after it. Every weight on the meta
    device must have such a hook.
    """
    devices: set[torch.device] = set()
    for module in model.modules():
        hook: Any = getattr(module, "_hf_hook", None)
        loads = [one for one in getattr(hook, "hooks", (hook,)) if getattr(one, "offload", False)]
        if any(p.is_meta for p in module.parameters(recurse=False)) and not loads:
            return None
        devices |= {torch.device(one.execution_device) for one in loads}
    return devices.pop() if len(devices) == 1 else None
