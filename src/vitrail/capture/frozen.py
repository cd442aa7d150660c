"""Hold a model frozen while it is read: everything that is changed is restored on leaving."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from operator import attrgetter
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn

from vitrail import fast
from vitrail.capture.batch_norm import ContiguousBatchNorm
from vitrail.capture.merged_adapters import merged_linears
from vitrail.capture.offloaded import offloaded_to
from vitrail.errors import ModelError

_locks: WeakKeyDictionary[nn.Module, threading.RLock] = WeakKeyDictionary()
_locks_guard = threading.Lock()
#: The compiler's stance is one for all threads.
_compiler_lock = threading.RLock()
#: Attributes that switch activation checkpointing on, whose recomputation no mode sees.
_CHECKPOINTING = ("grad_checkpointing", "gradient_checkpointing")
#: Implementations of attention in transformers that call kernels no mode sees, or none on every device.
_HIDDEN_ATTENTION = ("flash_attention_2", "flash_attention_3", "flash_attention_4", "flex_attention")


def unwrap(model: nn.Module) -> nn.Module:
    """The module inside ``torch.compile`` and ``DataParallel`` wrappers.

    Attention can be seen only where torch's functions are called one by one, so wrappers that compile or
    scatter are skipped; the parameters are the same objects.

    Example:
        >>> inner = nn.Linear(2, 2)
        >>> unwrap(nn.DataParallel(inner)) is inner
        True
    """
    if not isinstance(model, nn.Module):
        raise ModelError(
            f"the model is {'missing (None)' if model is None else f'a {type(model).__name__}: {str(model)[:60]!r}'}; "
            'pass an nn.Module, or what vitrail.load("SOURCE:NAME") returns'
        )
    return fast.call_cache("unwrapped", model, _unwrapped)


def _unwrapped(model: nn.Module) -> nn.Module:
    while True:
        if isinstance(model, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
            model = model.module
        elif isinstance(getattr(model, "_orig_mod", None), nn.Module):
            model = model._orig_mod  # type: ignore[assignment]  # noqa: SLF001
        else:
            break
    _refuse_unreadable(model)
    return model


def _refuse_unreadable(model: nn.Module) -> None:
    """Refuse models whose functions or weights cannot be read from Python, by name."""
    if isinstance(model, torch.jit.ScriptModule):
        raise ModelError(
            "this is a TorchScript module, whose functions cannot be seen from Python: "
            "pass the nn.Module it was scripted or traced from"
        )
    kind = type(model).__name__
    if kind in ("FullyShardedDataParallel", "FSDPModule") or kind.startswith("FSDP"):
        raise ModelError(
            "the model's weights are sharded (FSDP): gather them and pass the plain nn.Module, "
            "e.g. load the full state_dict into a new model"
        )
    if getattr(getattr(model, "meta", None), "get", None) and hasattr(model, "graph") and hasattr(model, "_guards_fn"):
        raise ModelError("this module came out of torch.export: pass the nn.Module it was exported from")
    places = fast.call_cache("devices", model, _devices)
    if len(places) <= 1 and not any(place.type == "meta" for place in places):
        return
    devices: dict[str, str] = {}
    for name, parameter in model.named_parameters():
        devices.setdefault(str(parameter.device), name)
    if "meta" in devices and offloaded_to(model) is not None:
        return
    if "meta" in devices:
        raise ModelError(
            f"the weight {devices['meta']} is on the meta device (not loaded, or offloaded by accelerate): "
            "load the model with its weights in memory"
        )
    if len(devices) > 1:
        raise ModelError(
            f"the model's weights are on several devices ({', '.join(f'{n} on {d}' for d, n in devices.items())}): "
            'load it onto one, e.g. device_map={"": 0} instead of device_map="auto"'
        )


def _devices(model: nn.Module) -> set[torch.device]:
    return set(map(attrgetter("device"), fast.weights_of(model)))


def lock_of(model: nn.Module) -> threading.RLock:
    """The lock that lets one thread at a time use a model."""
    with _locks_guard:
        return _locks.setdefault(model, threading.RLock())


@contextmanager
def gradients_enabled() -> Iterator[None]:
    """Let gradients be computed although the caller has switched them off; also a decorator for entry points.

    What is computed between the passes of a model, such as values of a target, needs a graph as the passes do.

    Example:
        >>> with torch.inference_mode(), gradients_enabled():
        ...     torch.is_inference_mode_enabled(), torch.is_grad_enabled()
        (False, True)
    """
    with torch.inference_mode(False), torch.enable_grad():
        yield


@contextmanager
def frozen(model: nn.Module, merge: bool = True, parameters: bool = True) -> Iterator[nn.Module]:
    """Hold a model in evaluation mode with frozen parameters and no compiled code; restore all of it on leaving.

    Parameters are frozen so that the graph starts at the first tensor whose gradient is needed, and nothing before it
    is kept. Compiled code is switched off because it calls no Python function that a mode could see. Activation
    checkpointing is switched off, decoders keep no keys and values for a next token, and linear layers with adapters
    (LoRA) run with their effective weights. Gradients of batch normalisation on the CPU are corrected. One thread at a
    time holds a model; others wait.

    Args:
        model: The model.
        merge: Whether layers with adapters run with their effective weights.
        parameters: Whether parameters are frozen; a pass without gradients does not need it.

    Example:
        >>> layer = nn.Linear(2, 2).train()
        >>> with frozen(layer) as held:
        ...     held.training, held.weight.requires_grad
        (False, False)
        >>> layer.training, layer.weight.requires_grad
        (True, True)
    """
    with lock_of(model):
        found = _Settings(fast.modules_of(model), parameters)
        training, trainable, switches = found.training, found.trainable, found.switches
        configs = _config_changes(found.configs.values())
        settings = [getattr(config, name) for config, name, _ in configs]
        try:
            for module in training:
                module.training = False
            for parameter in trainable:
                parameter.requires_grad_(False)
            for module, name in switches:
                setattr(module, name, False)
            for config, name, value in configs:
                setattr(config, name, value)
            with ExitStack() as stack:
                stack.enter_context(_eager(found))
                stack.enter_context(gradients_enabled())
                if merge:
                    stack.enter_context(merged_linears(model))
                if found.normalised and fast.call_cache("devices", model, _devices) == {torch.device("cpu")}:
                    stack.enter_context(ContiguousBatchNorm())
                yield model
        finally:
            for module in training:
                module.training = True
            for parameter in trainable:
                parameter.requires_grad_(True)
            for module, name in switches:
                setattr(module, name, True)
            for (config, name, _), before in zip(configs, settings, strict=True):
                setattr(config, name, before)


class _Settings:
    """What a pass is run without, found in one walk through the modules.

    Attributes:
        training: Modules in training mode.
        trainable: Parameters that require gradients.
        switches: Modules and names of switches of activation checkpointing that are on.
        configs: Configs of transformers models, by id.
        compiled: Whether a module is compiled.
        normalised: Whether a module may hold running statistics, as batch normalisation does.
    """

    def __init__(self, modules: list[nn.Module], parameters: bool) -> None:
        self.training: list[nn.Module] = []
        self.trainable: list[nn.Parameter] = []
        self.switches: list[tuple[nn.Module, str]] = []
        self.configs: dict[int, Any] = {}
        self.compiled = self.normalised = False
        kinds = set()
        for module in modules:
            held = module.__dict__
            kinds.add(type(module))
            if module.training:
                self.training.append(module)
            if parameters:
                for parameter in held["_parameters"].values():
                    # Tensors of inference mode cannot be set back; `run_model` says what is wrong with them.
                    if parameter is not None and parameter.requires_grad and not parameter.is_inference():
                        self.trainable.append(parameter)
            own = getattr(held.get("forward"), "_torchdynamo_orig_callable", None)  # forward = torch.compile(forward)
            if own is not None or held.get("_compiled_call_impl") is not None or "_orig_mod" in held["_modules"]:
                self.compiled = True
            if "running_var" in held["_buffers"]:
                self.normalised = True
            if "config" in held:
                self.configs[id(held["config"])] = held["config"]
            for name in _CHECKPOINTING:
                if name in held and held[name] is True:
                    self.switches.append((module, name))
        if any(getattr(kind.forward, "_torchdynamo_inline", None) is not None for kind in kinds):
            self.compiled = True


def _config_changes(configs: Iterable[Any]) -> list[tuple[Any, str, Any]]:
    """Settings of transformers models that a pass is run without, with what they are set to.

    Kernels that no mode sees are replaced. Keys and values are not kept for a next token, which never comes: keeping
    them takes memory, and copies from the CPU, for which a GPU waits.
    """
    found: list[tuple[Any, str, Any]] = []
    for config in configs:
        if getattr(config, "_attn_implementation", None) in _HIDDEN_ATTENTION:
            found.append((config, "_attn_implementation", "sdpa"))
        if getattr(config, "use_cache", None) is True:
            found.append((config, "use_cache", False))
    return found


@contextmanager
def _eager(found: _Settings) -> Iterator[None]:
    """Switch compiled code off where there is any; the switch is global, so other threads with compiled code wait."""
    compiled = found.compiled
    stance: AbstractContextManager[Any] = torch.compiler.set_stance("force_eager") if compiled else nullcontext()
    with _compiler_lock if compiled else nullcontext(), stance:
        yield
