"""Where the tokens of a model lie in its input, and which of them its head reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

import torch
from torch import Tensor, nn

from vitrail.capture import verify
from vitrail.capture.attention import AttentionMode
from vitrail.capture.attention_call import Call
from vitrail.capture.layout import Layout, by, count_layout, measured_layout, read_readout
from vitrail.capture.model_call import run_model
from vitrail.capture.random_input import on_random_input
from vitrail.capture.structure_pass import StructurePass
from vitrail.capture.token_centres import layout_by_centres
from vitrail.capture.verify import Check
from vitrail.errors import ModelError


def values_of_noise(one: StructurePass, call: int) -> tuple[Tensor, Tensor] | None:
    """Values of an attention call on a random input, and that input; None where the model attends otherwise on it."""
    signal = one.model_inputs.signal
    assert signal is not None

    def run(drawn: Tensor) -> tuple[Tensor, Tensor] | None:
        leaf = drawn.requires_grad_()
        mode = AttentionMode({}, 1, values_of=call, masks=False)
        with mode:
            run_model(one.model, one.model_inputs.swap(signal, leaf))
        return None if len(mode.calls) != len(one.mode.calls) or mode.values is None else (mode.values, leaf)

    return on_random_input(run, signal, seed=2)


def _layout_by_centres(one: StructurePass, layout: Layout | None) -> Layout | None:
    """The layout of overlapping tokens by their centres, measured on noise that is always the same.

    Which token has most of an entry depends on the weights of a convolution, so that a layout of the same grid that was
    found by this has its area corrected; one of another grid stays.
    """
    axes = one.model_inputs.axes
    noise = None if axes is None or one.leaf is None else values_of_noise(one, one.live[0])
    centred = None if noise is None or axes is None else layout_by_centres(*noise, axes)
    if layout is None or centred is None:
        return layout or centred
    same = (centred.prefix, centred.grid, centred.table) == (layout.prefix, layout.grid, layout.table)
    return replace(layout, area=centred.area) if same else layout


def place_tokens(
    one: StructurePass, calls: Sequence[Call], given: Layout, tokens: int, causal: bool
) -> tuple[Layout, list[str], Check]:
    """Where the patches are among the tokens and in the image, and which tokens the head reads."""
    size, notes = one.map_size, list[str]()
    image_size = (size[0], size[1]) if size is not None and one.model_inputs.image is not None else None
    V, leaf = calls[0].V, one.leaf
    measured_owners = None if V is None or leaf is None else verify.owners(V, leaf, one.model_inputs.axes)
    owners, shared = (None, 0.0) if measured_owners is None else measured_owners
    one.shared, one.owners = shared, owners
    words = size is None and one.model_inputs.patches is None
    name = "which token is which word" if words else "which token is which patch"
    check = Check(name, None, "no gradient from the tokens to the input: the order was counted")
    layout = None
    if size is None:
        layout = Layout(given.prefix, None, given.readout, given.suffix)
        if owners is not None:
            valid, owners = one.model_inputs.valid, owners.cpu()
            owners = owners if valid is None else _padding_in_place(owners, valid[0].cpu())
            straight = bool((owners == torch.arange(len(owners))).all()) and len(owners) == tokens
            check = Check(name, straight, "in the order of the input" if straight else _shifted(owners, tokens))
    elif owners is not None:
        layout = measured_layout(owners, tokens)
        check = _placed(layout, owners, name)
        # Each call confirms the order that was measured: that of the patches, and where there is one.
        one.owners = None if layout is None else _of_patches(owners, layout.patch_tokens(tokens))
        if image_size is None and (layout is None or shared >= verify.OVERLAP):
            centred = _layout_by_centres(one, layout)
            check = check if layout is not None else _placed(centred, owners.clamp_min(0), name)
            layout = centred
    if image_size is not None and (layout is None or given.grid is not None or given.table is not None):
        measured = layout
        layout = count_layout(given, tokens, image_size, calls[0].grid, _stated_prefix(one.model))
        if measured is not None and (measured.grid, measured.patch_tokens(tokens)) != (
            layout.grid, layout.patch_tokens(tokens)
        ):  # fmt: skip
            check = Check(name, False, f"the given layout says otherwise than measured: {measured}")
        elif measured is not None:
            layout = replace(layout, area=measured.area)
        elif given.grid is None:
            notes.append("the order of the patches could not be measured: they are taken row by row after the prefix")
    elif size is not None and image_size is None and (layout is None or given.grid is not None):
        layout, note = _given_layout(given, tokens, size, layout)
        notes += [note] if note else []
        size = size if layout.grid is not None else None  # its tokens are taken as those of a text
    assert layout is not None
    if given.prefix is not None and image_size is not None and given.prefix != layout.prefix:
        count_layout(replace(given, grid=layout.grid), tokens, image_size, None, None)  # raises: it does not fit
    layout, note = _readout(replace(layout, readout=given.readout), calls, one, text=size is None)
    if causal and given.prefix is None and size is None:  # the first token of a causal model is a word like others
        layout = replace(layout, prefix=0)
    return layout, [*notes, *([note] if note else [])], check


def _given_layout(
    given: Layout, tokens: int, size: tuple[int, ...], measured: Layout | None
) -> tuple[Layout, str | None]:
    """The layout that the user states for an input that is no image, or one without a grid where none was measured."""
    if given.grid is None:
        note = "which part of the input each token comes from could not be measured: maps are those of the tokens"
        return Layout(given.prefix, None, given.readout, given.suffix), note
    if len(given.grid) != len(size):
        raise ModelError(
            f"the layout has a grid of {len(given.grid)} axes, {by(given.grid)}, and the input has {len(size)}, "
            f"{by(size)}: give one number of patches for each axis"
        )
    prefix = tokens - prod(given.grid) - given.suffix if given.table is None else given.prefix or 0
    if prefix < 0 or given.prefix not in (None, prefix):
        raise ModelError(
            f"the layout does not fit: {given.prefix or 0} prefix tokens and a {by(given.grid)} grid make "
            f"{(given.prefix or 0) + prod(given.grid) + given.suffix} tokens, the model has {tokens}"
        )
    stated = replace(given, prefix=prefix)
    if measured is not None and measured.grid == stated.grid:
        stated = replace(stated, area=measured.area)
    return stated, None


def _of_patches(owners: Tensor, patches: Sequence[int]) -> Tensor:
    """The owners without pixels of tokens that are no patches, such as a mean of all, which depends on every pixel."""
    return owners.masked_fill(~torch.isin(owners, torch.tensor(patches, device=owners.device)), -1)


def _padding_in_place(owners: Tensor, valid: Tensor) -> Tensor:
    """Padding that no token depends on, as models set its embedding to zero, counts as being at its position."""
    return (
        torch.where((owners < 0) & ~valid, torch.arange(len(owners)), owners) if len(valid) == len(owners) else owners
    )


def _shifted(owners: Tensor, tokens: int) -> str:
    moved = int((owners != torch.arange(len(owners))).sum())
    return f"{moved} of {len(owners)} words are not at their own position among {tokens} tokens"


def _placed(layout: Layout | None, owners: Tensor, name: str) -> Check:
    if layout is None or layout.grid is None:
        return Check(name, None, "the patches lie on no regular grid: the order was counted")
    order = "row by row" if layout.table is None else "in another order, placed by a table"
    covered = float((owners >= 0).double().mean())
    border = "" if covered > 0.999 else f"; {100 * (1 - covered):.1f} % of the pixels belong to no patch"
    return Check(
        name,
        True,
        f"{by(layout.grid)} patches {order}, {layout.prefix} tokens before and {layout.suffix} after{border}",
    )


def _readout(layout: Layout, calls: Sequence[Call], one: StructurePass, text: bool) -> tuple[Layout, str | None]:
    last = calls[-1]
    pool = last.shape[2] < last.shape[3] and len(calls) > 1
    prefix, note = layout.prefix, None
    if layout.readout is None:
        readout = None
        gradient = _gradient_at_last(calls, one)
        if gradient is not None:
            reach = gradient[0].double().pow(2).sum((0, 2)).sqrt()
            valid = one.model_inputs.valid
            reach = reach if valid is None else reach * valid[0].to(reach)
            before, after = (1, 0) if pool else (0, 0) if text else (prefix or 0, layout.suffix)
            readout = read_readout(_padded_mean(reach, valid), before, after)
        if pool:
            readout = readout if isinstance(readout, tuple) else "pool"
        if readout is None:
            readout = "cls" if prefix or text else "mean"
            note = f"the head's gradient is zero everywhere (an untrained head?): readout {readout!r} is a guess"
        layout = replace(layout, readout=readout)
    if prefix is None:  # text: the token that is read is no word of the input
        layout = replace(layout, prefix=1 if layout.readout in ("cls", (0,)) else 0)
    return layout, note


def _gradient_at_last(calls: Sequence[Call], one: StructurePass) -> Tensor | None:
    """The gradient at the last attention, or at that before it where the weights after the last one are zero.

    An attention layer whose result is multiplied by zero mixes no tokens, so the same tokens are read before it.
    """
    arrived = {id(one.mode.calls[i]): gradient for i, gradient in one.arrived.items()}
    for call in reversed(calls):
        gradient = arrived.get(id(call))
        if gradient is None or call.shape != calls[-1].shape:
            return None
        if bool(gradient.any()):
            return gradient
    return None


def _padded_mean(reach: Tensor, valid: Tensor | None) -> Tensor:
    """Leave padding out where every other token is read, so that a mean over a padded text counts as one."""
    if valid is None or not bool((reach[valid[0]] > 0).all()):
        return reach
    return reach[valid[0]]


def _stated_prefix(model: nn.Module) -> int | None:
    for module in model.modules():
        stated = getattr(module, "num_prefix_tokens", None)
        if isinstance(stated, int):
            return stated
    return None
