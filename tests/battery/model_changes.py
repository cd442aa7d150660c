"""Ways to change a model between two calls, as data: each makes a model, explains it, changes it and explains it again.

A change is a function from a model that was explained before to nothing, or to an undo function where it reaches beyond
the model (globals, classes, the environment). The maps after the change must be those of a fresh copy that was changed
in the same way and never explained before.
"""

from __future__ import annotations

import copy
import os
import threading
from collections.abc import Callable
from functools import partial
from types import MethodType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.battery import changed_vit as model_file
from tests.battery.changed_vit import (
    CLASSES,
    HEADS,
    ORDER,
    PATCH,
    SETTINGS,
    SIDE,
    TOKENS,
    WIDTH,
    Adapted,
    Attention,
    Block,
    ChangedViT,
    OtherViT,
)

Undo = Callable[[], None]


def _set(path: str, value: Any) -> Callable[[nn.Module], None]:
    """Set an attribute of the model, given by its dotted path; numbers index modules."""

    def change(model: nn.Module) -> None:
        *parents, name = path.split(".")
        holder: Any = model
        for parent in parents:
            holder = holder[int(parent)] if parent.isdecimal() else getattr(holder, parent)
        setattr(holder, name, value)

    return change


def _globals(name: str, value: Any) -> Callable[[nn.Module], Undo]:
    """Set a global variable of the model's module."""

    def change(_: nn.Module) -> Undo:
        before = getattr(model_file, name)
        setattr(model_file, name, value)
        return lambda: setattr(model_file, name, before)

    return change


def _nested_global(_: nn.Module) -> Undo:
    SETTINGS["head"]["token"] = 2
    return lambda: SETTINGS["head"].__setitem__("token", 0)


def _global_in_place(_: nn.Module) -> Undo:
    ORDER.reverse()
    return ORDER.sort


def _environment(_: nn.Module) -> Undo:
    os.environ["TINY_POOLING"] = "mean"
    return lambda: os.environ.pop("TINY_POOLING", None)


def _class_method(_: nn.Module) -> Undo:
    before = ChangedViT.pooled
    ChangedViT.pooled = lambda _, x: x[:, 1:].mean(1)
    return lambda: setattr(ChangedViT, "pooled", before)


def _class_forward(_: nn.Module) -> Undo:
    before = Block.forward
    Block.forward = lambda self, x: before(self, before(self, x))
    return lambda: setattr(Block, "forward", before)


def _class_attribute(_: nn.Module) -> Undo:
    before = Attention.forward

    def mixed(self: Attention, x: Tensor) -> Tensor:
        return before(self, x.flip(1))

    Attention.forward = mixed
    return lambda: setattr(Attention, "forward", before)


def _patched_function(_: nn.Module) -> Undo:
    before = F.gelu
    F.gelu = F.silu
    return lambda: setattr(F, "gelu", before)


def _closure(model: nn.Module) -> None:
    state = {"token": 0}
    model.pool_function = lambda x: x[:, state["token"]]
    state["token"] = 5


def _forward_on_object(model: nn.Module) -> None:
    model.forward = MethodType(lambda self, images: self.head(self.norm(self.embedded(images)).mean(1)), model)


def _forward_of_part(model: nn.Module) -> None:
    def mean_first(self: ChangedViT, images: Tensor) -> Tensor:
        x = self.embedded(images)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x[:, 1:].mean(1)))

    model.forward = MethodType(mean_first, model)


def _hook_reorders(model: nn.Module) -> None:
    model.blocks[0].register_forward_pre_hook(
        lambda _, given: (torch.cat([given[0][:, :1], given[0][:, 1:].flip(1)], 1),)
    )


def _hook_between(model: nn.Module) -> None:
    model.blocks[1].register_forward_hook(lambda _, __, out: torch.cat([out[:, :1], out[:, 1:].flip(1)], 1))


def _hook_on_head(model: nn.Module) -> None:
    model.norm.register_forward_hook(lambda _, __, out: out.mean(1, keepdim=True).expand_as(out))


def _hook_on_input(model: nn.Module) -> None:
    model.register_forward_pre_hook(lambda _, given: (given[0].flip(-1),))


def _global_hook(_: nn.Module) -> Undo:
    def swapped(module: nn.Module, given: Any, out: Any) -> Any:
        return out[:, [1, 0, *range(2, TOKENS)]] if isinstance(module, Block) else None

    return nn.modules.module.register_module_forward_hook(swapped).remove


def _data_write(path: str, factor: float = -1.0) -> Callable[[nn.Module], None]:
    def change(model: nn.Module) -> None:
        weight = model.get_parameter(path)
        weight.data.copy_((weight.data * factor).roll(1, 0))

    return change


def _data_swap(model: nn.Module) -> None:
    model.head.weight.data = model.head.weight.data.flip(0).clone()


def _in_place(model: nn.Module) -> None:
    with torch.no_grad():
        model.blocks[1].attn.qkv.weight.mul_(-1.5)


def _training_step(model: nn.Module) -> None:
    optimiser = torch.optim.SGD(model.parameters(), 0.5)
    model(torch.ones(1, 3, PATCH * SIDE, PATCH * SIDE).to(model.head.weight)).square().sum().backward()
    optimiser.step()
    optimiser.zero_grad()


def _state_dict(model: nn.Module) -> None:
    model.load_state_dict({name: -value for name, value in model.state_dict().items()})


def _buffer(name: str, value: Tensor) -> Callable[[nn.Module], None]:
    def change(model: nn.Module) -> None:
        getattr(model, name).copy_(value)

    return change


def _buffer_data(model: nn.Module) -> None:
    model.order.data.copy_(torch.arange(SIDE * SIDE).flip(0))


def _new_buffer(model: nn.Module) -> None:
    model.order = torch.arange(SIDE * SIDE, device=model.order.device).view(SIDE, SIDE).T.flatten()


def _new_block(model: nn.Module) -> None:
    model.blocks[1] = copy.deepcopy(model.blocks[0])


def _swap_blocks(model: nn.Module) -> None:
    first, last = model.blocks[0], model.blocks[2]
    model.blocks[0], model.blocks[2] = last, first


def _more_blocks(model: nn.Module) -> None:
    model.blocks.append(copy.deepcopy(model.blocks[0]))


def _no_norm(model: nn.Module) -> None:
    model.norm = nn.Identity()


def _new_head(model: nn.Module) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(9)
        model.head = nn.Linear(WIDTH, CLASSES + 2).to(model.head.weight)


def _shared_weights(model: nn.Module) -> None:
    model.blocks[2].attn.proj.weight = model.blocks[0].attn.proj.weight


def _in_thread(change: Callable[[nn.Module], Any]) -> Callable[[nn.Module], None]:
    def run(model: nn.Module) -> None:
        worker = threading.Thread(target=change, args=(model,))
        worker.start()
        worker.join()

    return run


def _compiled_part(model: nn.Module) -> None:
    model.pooling = "mean"
    model.compile(backend="eager")


def _double(model: nn.Module) -> None:
    model.double()
    model.pooling = "mean"


def _half(model: nn.Module) -> None:
    model.bfloat16()
    model.pooling = "mean"


def _there_and_back(model: nn.Module) -> None:
    model.double().float()
    model.token = 7


def _class(model: nn.Module) -> None:
    model.__class__ = OtherViT


def _partial(model: nn.Module) -> None:
    model.pool_function = partial(torch.mean, dim=1)


def _bound_method(model: nn.Module) -> None:
    model.pool_function = OtherViT.pooled.__get__(model)


def _data_dependent(model: nn.Module) -> None:
    """Tokens sorted by their size, another order for each image."""

    def ordered(x: Tensor) -> Tensor:
        place = x[:, 1:].square().sum(-1).argsort(1)[..., None].expand(-1, -1, x.shape[-1])
        return torch.cat([x[:, :1], x[:, 1:].gather(1, place)], 1)

    model.tokens_in = ordered


def _causal(model: nn.Module) -> None:
    for block in model.blocks:
        block.attn.forward = MethodType(_causal_attention, block.attn)


def _causal_attention(self: Attention, x: Tensor) -> Tensor:
    b, n, _ = x.shape
    q, k, v = self.qkv(x).view(b, n, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
    mask = torch.ones(n, n, dtype=torch.bool, device=x.device).triu()
    return self.proj(F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).reshape(b, n, WIDTH))


def _adapters(change: Callable[[Adapted], None]) -> Callable[[nn.Module], None]:
    def run(model: nn.Module) -> None:
        for module in model.modules():
            if isinstance(module, Adapted):
                change(module)

    return run


def _adapter_data(layer: Adapted) -> None:
    layer.lora_b.weight.data.copy_(3 * layer.lora_b.weight.data.roll(1, 0))


def _adapter_hook(layer: Adapted) -> None:
    layer.register_forward_hook(lambda _, __, out: 0.5 * out)


def _merge_adapter(layer: Adapted) -> None:
    layer.base_layer.weight.data += layer.lora_b.weight.data @ layer.lora_a.weight.data
    layer.enabled = False


def _remove_adapters(model: nn.Module) -> None:
    for block in model.blocks:
        block.attn.proj, block.attn.qkv = block.attn.proj.base_layer, block.attn.qkv.base_layer


def _add_adapters(model: nn.Module) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(4)
        for block in model.blocks:
            block.attn.proj = Adapted(block.attn.proj).to(model.head.weight)


#: Changes of `changed_vit` by name.
CHANGES: dict[str, Callable[[nn.Module], Any]] = {
    "attribute": _set("pooling", "mean"),
    "integer attribute": _set("token", 3),
    "negative index": _set("last", -2),
    "slice": _set("depth", slice(0, 2)),
    "tuple": _set("table", tuple(reversed(range(SIDE * SIDE)))),
    "float": _set("scaled", 0.0),
    "bool": _set("softmax_output", True),
    "dataclass attribute": _set("inner.pooling", "mean"),
    "list in a nested object": lambda m: m.inner.tokens.__setitem__(0, 4),
    "nested namespace": _set("namespace.deep.pooling", "both"),
    "nested dict": lambda m: m.config["pool"].update(kind="mean"),
    "list": lambda m: m.listed.__setitem__(0, "mean"),
    "set": lambda m: m.chosen.add("mean"),
    "frozenset": _set("frozen_set", frozenset({"both"})),
    "ordered dict": lambda m: m.ordered.update(pool="mean"),
    "deque": lambda m: m.queue.append("mean"),
    "numpy array": lambda m: m.array.__setitem__(0, 2),
    "lambda": _set("pool_function", lambda x: x[:, 1:].mean(1)),
    "closure": _closure,
    "partial": _partial,
    "bound method": _bound_method,
    "activation of a block": _set("blocks.1.act", torch.relu),
    "scale of attention": _set("blocks.2.attn.scale", 2.0),
    "parallel block": _set("blocks.1.parallel", True),
    "global": _globals("POOLING", "mean"),
    "nested global": _nested_global,
    "global in place": _global_in_place,
    "global function": _globals("gelu", torch.tanh),
    "patched function": _patched_function,
    "environment": _environment,
    "class method": _class_method,
    "forward of a class": _class_forward,
    "attention of a class": _class_attribute,
    "class of the object": _class,
    "forward on the object": _forward_on_object,
    "forward on the object with the same layers": _forward_of_part,
    "causal attention": _causal,
    "hook that reorders tokens": _hook_reorders,
    "hook between blocks": _hook_between,
    "hook on the head": _hook_on_head,
    "hook on the input": _hook_on_input,
    "hook of all modules": _global_hook,
    "data of a weight": _data_write("blocks.0.attn.proj.weight"),
    "data of a norm": _data_write("blocks.1.norm1.weight", 2.0),
    "data swapped": _data_swap,
    "weight in place": _in_place,
    "training step": _training_step,
    "state dict": _state_dict,
    "buffer in place": _buffer("order", torch.arange(SIDE * SIDE).flip(0)),
    "data of a buffer": _buffer_data,
    "new buffer": _new_buffer,
    "factor to zero": _buffer("gate", torch.tensor(-1.0)),
    "new block": _new_block,
    "blocks swapped": _swap_blocks,
    "one more block": _more_blocks,
    "norm removed": _no_norm,
    "head replaced": _new_head,
    "weights shared": _shared_weights,
    "in another thread": _in_thread(_set("pooling", "mean")),
    "compiled": _compiled_part,
    "double precision": _double,
    "half precision": _half,
    "precision and back": _there_and_back,
    "order by image": _data_dependent,
    "adapters added": _add_adapters,
}

#: Changes of `adapted_vit` by name.
ADAPTER_CHANGES: dict[str, Callable[[nn.Module], Any]] = {
    "data of the adapters": _adapters(_adapter_data),
    "adapters off": _adapters(lambda layer: setattr(layer, "enabled", False)),
    "factor of the adapters": _adapters(lambda layer: setattr(layer, "factor", -2.0)),
    "adapters merged": _adapters(_merge_adapter),
    "hook on the adapters": _adapters(_adapter_hook),
    "adapters removed": _remove_adapters,
}


def undo_of(change: Callable[[nn.Module], Any], model: nn.Module) -> Undo:
    """Change a model; returns what undoes all that was changed beyond it."""
    undo = change(model)
    return undo if callable(undo) and not isinstance(undo, nn.Module) else lambda: None
