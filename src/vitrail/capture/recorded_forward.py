"""Forward passes without gradients that are recorded on a GPU: of the inputs, and of perturbed images."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from vitrail import fast
from vitrail.capture.forward import forward_only, forward_pass
from vitrail.capture.frozen import frozen
from vitrail.capture.gradient_graph import Moves, graph_moves
from vitrail.capture.inputs import ModelInputs
from vitrail.capture.kept_pass import ForwardPass
from vitrail.capture.model_call import run_model
from vitrail.capture.model_structure import ModelStructure
from vitrail.capture.output_tensors import logits_of
from vitrail.capture.outputs import class_logits, output_count, stated_count
from vitrail.capture.program import MAX_INDEX, Program, checksum, join_checksums
from vitrail.capture.trace import Needs

#: Numbers in the residual stream of a batch up to which launching a pass takes a good part of its time: by whether the
#: model is in half precision, in which a GPU computes several times as fast.
MOST_NUMBERS = {False: 2**22, True: 2**24}
#: Batches are filled up to a multiple of this size, so that a few recordings serve all.
MULTIPLE = 8
#: Largest difference between the outputs of a replay and of the model as it is, as a share of the largest output. A
#: recorded pass computes attention and large products in another order, so the outputs agree to rounding only.
ROUNDING = {torch.float64: 1e-9, torch.float32: 1e-4, torch.bfloat16: 5e-2, torch.float16: 1e-2}


def worth_recording(structure: ModelStructure, batch: int, dtype: torch.dtype) -> bool:
    """Whether launching a pass over this many inputs takes a good part of its time."""
    if structure.order_by_image:  # each image needs the places of its own tokens
        return False
    tokens = max((layer.size[1] for layer in structure.layers), default=0)
    return batch * tokens * structure.width <= MOST_NUMBERS[dtype in (torch.bfloat16, torch.float16)]


#: Functions whose results are compared by the outputs: another function in their place changes these.
_COMPUTING = frozenset({
    F.linear, F.layer_norm, F.gelu, F.scaled_dot_product_attention, F.dropout, F.softmax, F.relu, F.silu, F.conv2d,
    torch.matmul, torch.add, torch.mul, torch.cat, Tensor.add, Tensor.mul, Tensor.matmul, Tensor.softmax,
    Tensor.__add__, Tensor.__mul__, Tensor.__matmul__, Tensor.size, Tensor.dim,
})  # fmt: skip


class _Moves(Program):
    """Functions with their settings, and the content of indices; which tensors they were applied to is left out."""

    def note(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> None:
        """Add one function call."""
        del result
        settings = [(name, self._described(value)) for name, value in kwargs.items()]
        self.value = hash((self.value, func, *map(self._described, args), *settings))

    def _tensor(self, tensor: Tensor) -> Any:
        integers = not (tensor.is_floating_point() or tensor.is_complex())
        if integers and id(tensor) not in self._inputs and 0 < tensor.numel() <= MAX_INDEX:
            self.indices.append(checksum(tensor))
        return (tensor.dim(), integers)


class _MovesMode(TorchFunctionMode):
    """Notes the functions of a pass that move, select or detach tensors: these can change maps but not the outputs."""

    def __init__(self, inputs: Sequence[Tensor]) -> None:
        super().__init__()
        self.program = _Moves(inputs)

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func not in _COMPUTING and getattr(func, "__name__", "") != "__get__":
            self.program.note(func, args, kwargs or {}, result)
        return result


def as_the_model_is(
    model: nn.Module, model_inputs: ModelInputs, scores_of: Callable[[Any], Tensor | None], index: int = 0
) -> Callable[[list[Tensor], Moves | None], tuple[Tensor | bool, Moves]]:
    """Function that compares a replay with the model as it is: its class scores, and how it moves tensors.

    Args:
        model: The model; it runs once.
        model_inputs: Inputs of the replay.
        scores_of: From the model's output to its class scores as the replay returns them.
        index: Which result of the replay holds the class scores.
    """

    def confirm(results: list[Tensor], before: Moves | None) -> tuple[Tensor | bool, Moves]:
        scores = None if model_inputs.numbers is None else _scores_with_graph(model_inputs.numbers)
        if scores is None or scores.grad_fn is None:  # words, or a model that switches gradients off
            scores, moves = _noted_pass()
            return same_to_rounding(results[index], scores) & _same_moves(moves, before), moves
        agrees = same_to_rounding(results[index], scores.detach())  # computed while the graph is read
        moves = graph_moves(scores)
        return agrees & _same_moves(moves, before), moves

    def _scores_with_graph(numbers: Tensor) -> Tensor | None:
        with fast.beside_replay(), frozen(model, merge=False):
            leaf = numbers.detach().requires_grad_()
            # A copy, as models change their input in place.
            return scores_of(run_model(model, model_inputs.swap(numbers, leaf.clone())))

    def _noted_pass() -> tuple[Tensor | None, Moves]:
        mode = _MovesMode(model_inputs.tensors)
        with frozen(model, merge=False, parameters=False), torch.no_grad(), mode:
            scores = scores_of(run_model(model, model_inputs))
        return scores, (mode.program.value, join_checksums(mode.program.indices))

    return confirm


def _same_moves(moves: Moves, before: Moves | None) -> Tensor | bool:
    if before is None:
        return True
    (number, sums), (known_number, known_sums) = moves, before
    if number != known_number or (sums is None) != (known_sums is None):
        return False
    if sums is None or known_sums is None:
        return True
    return sums.shape == known_sums.shape and (sums == known_sums).all()


def same_to_rounding(replayed: Tensor, scores: Tensor | None) -> Tensor:
    """Whether two tensors agree to `ROUNDING`, as a tensor on their device.

    Example:
        >>> scores = torch.tensor([[2.0, -1.0]])
        >>> bool(same_to_rounding(scores, scores + 1e-5)), bool(same_to_rounding(scores, scores + 1e-2))
        (True, False)
    """
    if scores is None or scores.shape != replayed.shape:
        return torch.zeros((), dtype=torch.bool, device=replayed.device)
    share = max(ROUNDING.get(t.dtype, 1e-4) for t in (replayed, scores))
    expected = scores.to(replayed.dtype)
    return (replayed - expected).abs().max() <= share * expected.abs().max()


def recorded_scores(model: nn.Module, structure: ModelStructure, images: Tensor) -> Tensor | None:
    """Class scores of images, shape (N, C), without gradients; None where the pass is not recorded."""
    if structure.kind != "plain":  # convolutions are computed in other ways for other batch sizes
        return None
    count = len(images)
    filled = -(-count // MULTIPLE) * MULTIPLE
    if not count or not worth_recording(structure, filled, images.dtype):
        return None
    if not fast.recordable(model, [images]):
        return None

    def compute(given: Sequence[Tensor]) -> tuple[list[Tensor], ModelStructure]:
        with frozen(model), torch.no_grad(), fast.with_split_products(given[0].device):
            scores = logits_of(model(given[0]), stated_count(model))
        assert scores is not None
        return [scores], structure  # keeps the structure alive so that its id is not reused

    def confirm(results: list[Tensor], _: None) -> tuple[Tensor, None]:
        with frozen(model, merge=False, parameters=False), torch.no_grad():
            return same_to_rounding(results[0], logits_of(model(padded), stated_count(model))), None

    padded = torch.cat([images, images[-1:].expand(filled - count, -1, -1, -1)]) if filled > count else images
    padded = padded.contiguous()
    (scores,), _ = fast.run_recorded(model, ("scores", id(structure)), [padded], compute, confirm)
    return scores[:count]


def recorded_pass(
    model: nn.Module, model_inputs: ModelInputs, structure: ModelStructure, needs: Sequence[Needs]
) -> ForwardPass | None:
    """A forward pass that keeps class scores and some tensors; None where it is not recorded.

    The class scores are all that is left of the model's output.
    """
    image = model_inputs.image
    if image is None or not model_inputs.only_image or output_count(model) is None or structure.kind != "plain":
        return None
    if not worth_recording(structure, len(image), image.dtype):
        return None
    if not fast.recordable(model, [image]):
        return None

    def compute(given: Sequence[Tensor]) -> tuple[list[Tensor], tuple[ForwardPass, list[tuple[int, str]]]]:
        swapped = model_inputs.swap(image, given[0])
        if any(needs):
            with forward_pass(model, swapped, structure, needs) as one, torch.no_grad():
                return _tensors_of(one, stated_count(model))
        return _tensors_of(forward_only(model, swapped, structure), stated_count(model))

    confirm = as_the_model_is(model, model_inputs, lambda output: logits_of(output, stated_count(model)))
    asked = tuple(tuple((kind, where.start, where.stop) for kind, where in need.items()) for need in needs)
    key = ("pass", id(structure), asked)
    (scores, *kept), (one, locations) = fast.run_recorded(model, key, [image], compute, confirm)
    tensors: dict[int, dict[str, Any]] = {}
    for (index, name), tensor in zip(locations, kept, strict=True):
        tensors.setdefault(index, {})[name] = tensor
    blocks = tuple(block.having(**tensors.get(i, {})) for i, block in enumerate(one.blocks))
    return replace(one, output=scores, logits=class_logits(model, scores), blocks=blocks)


def _tensors_of(one: ForwardPass, count: int | None) -> tuple[list[Tensor], tuple[ForwardPass, list[tuple[int, str]]]]:
    """Class scores and all tensors of the blocks; and the pass, with the block and name of each tensor."""
    scores = logits_of(one.output, count)
    assert scores is not None
    held = [
        (i, name, t) for i, block in enumerate(one.blocks) for name, t in vars(block).items() if isinstance(t, Tensor)
    ]
    return [scores.detach(), *(t.detach() for *_, t in held)], (one, [(i, name) for i, name, _ in held])
