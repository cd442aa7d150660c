"""Texts through a model, window by window, and their windows' scores put together.

A text that fits goes through the model once. A longer one is cut into windows that overlap; a token that is seen in
several windows gets the mean of its scores there. What is explained is fixed for the whole text before: by default the
class with the highest mean over the windows of its logits.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from vitrail.capture.frozen import frozen
from vitrail.capture.inputs import ModelInputs, logits_of
from vitrail.errors import InputError, MapWarning, ModelError, OptionError
from vitrail.explanation import Explanation
from vitrail.models.loaded import LoadedModel
from vitrail.postprocess import is_constant, normalise
from vitrail.targets import Target, resolve_target
from vitrail.targets import _classes as resolve
from vitrail.text.result import TextMap, text_map
from vitrail.text.tokens import Encoded, Reading, Window, batch, encode

#: Windows in a pass, where the user sets no limit.
MOST = 8

#: From the model's inputs and the targets of each to explanations by method.
Run = Callable[[dict[str, Tensor], Target], Mapping[str, Explanation]]


def explain_texts(
    texts: Any, tokenizer: Any, about: LoadedModel, target: Target, run: Run, batch_size: int | None, keep: bool
) -> dict[str, Explanation]:
    """Explanations of texts, by method.

    Args:
        texts: A text, or several.
        tokenizer: A fast Hugging Face tokenizer, or a `Reading`.
        about: The model.
        target: As `vitrail.explain` takes it; one for each text, not for each window.
        run: Explains inputs that are ready to be fed.
        batch_size: Most windows at a time.
        keep: Whether the methods' notes are wanted; they are not put together from several passes.
    """
    reading = tokenizer if isinstance(tokenizer, Reading) else Reading(tokenizer)
    given = [texts] if isinstance(texts, str) else texts
    if not isinstance(given, Sequence) or not given:
        raise InputError("with a tokenizer, give a text or a list of texts, at least one")
    if batch_size is not None and batch_size < 1:
        raise OptionError(f"batch_size={batch_size} must be at least 1")
    read = encode(given, reading, about.module)
    windows = [window for one in read for window in one.windows]
    size = batch_size or MOST
    aimed = _aim(target, about, read, reading, size)
    order = sorted(range(len(windows)), key=lambda i: len(windows[i]))  # windows alike in length go together
    groups = [order[i : i + size] for i in range(0, len(order), size)]
    if keep and len(groups) > 1:
        raise OptionError(f"keep=True needs all {len(windows)} windows in one pass: batch_size={len(windows)}")
    padding = _padding(reading)
    found: list[Mapping[str, Explanation]] = []
    for group in groups:
        rows = [windows[i] for i in group]
        own = aimed[[w.text for w in rows]] if isinstance(aimed, Tensor) else aimed
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", MapWarning)  # a window may say nothing where its text does
            found.append(run(batch(rows, padding), own))
    place = {i: (g, j) for g, group in enumerate(groups) for j, i in enumerate(group)}
    where = [place[i] for i in range(len(windows))]
    return {label: _put_together([f[label] for f in found], where, windows, read, reading) for label in found[0]}


def predict(texts: Sequence[str], reading: Reading, model: nn.Module, batch_size: int = MOST) -> Tensor:
    """What a model says about texts, shape (B, C): the mean over its windows of each text's logits."""
    return _logits(model, encode(texts, reading, model), reading, batch_size)


def _logits(model: nn.Module, read: Sequence[Encoded], reading: Reading, size: int) -> Tensor:
    windows = [window for one in read for window in one.windows]
    order = sorted(range(len(windows)), key=lambda i: len(windows[i]))
    rows: list[Tensor] = [torch.empty(0)] * len(windows)
    with frozen(model), torch.inference_mode():
        for start in range(0, len(order), size):
            group = order[start : start + size]
            said = logits_of(
                ModelInputs((), batch([windows[i] for i in group], _padding(reading))).onto(model).into(model)
            )
            if said is None:
                raise ModelError(f"{type(model).__name__} gives no class scores: load a sequence classifier")
            for i, row in zip(group, said.clone(), strict=True):
                rows[i] = row
    return _mean_by_text(torch.stack(rows), windows, len(read))


def _padding(reading: Reading) -> int:
    found = reading.tokenizer.pad_token_id
    return 0 if found is None else int(found)


def _aim(target: Target, about: LoadedModel, read: Sequence[Encoded], reading: Reading, size: int) -> Tensor | Target:
    """The target of each text, shape (B, K), or what can be asked of every window as it is."""
    if callable(target):
        return target
    if target is not None and not (isinstance(target, str) and target[:3] == "top" and target[3:].isdigit()):
        return resolve(target, len(read), about.classes)
    if all(len(one.windows) == 1 for one in read):
        return target
    return resolve_target(target, _logits(about.module, read, reading, size), len(read)).classes


def _mean_by_text(rows: Tensor, windows: Sequence[Window], texts: int) -> Tensor:
    owner = torch.tensor([w.text for w in windows], device=rows.device)
    total = rows.new_zeros(texts, *rows.shape[1:]).index_add(0, owner, rows)
    count = torch.bincount(owner, minlength=texts).to(rows)
    return total / count.view(-1, *[1] * (rows.dim() - 1))


def _put_together(
    found: Sequence[Explanation],
    where: Sequence[tuple[int, int]],
    windows: Sequence[Window],
    read: Sequence[Encoded],
    reading: Reading,
) -> Explanation:
    first = found[0]
    count, longest = first.grid.shape[1], max(len(one.tokens) for one in read)
    grid = first.grid.new_zeros(len(read), count, longest)
    times = first.grid.new_zeros(len(read), longest)
    for window, (g, j) in zip(windows, where, strict=True):
        inside = torch.tensor([i for i, p in enumerate(window.at) if p >= 0], device=grid.device)
        at = torch.tensor([p for p in window.at if p >= 0], device=grid.device)
        grid[window.text, :, at] += found[g].grid[j][:, inside]
        times[window.text, at] += 1
    grid = grid / times.clamp_min(1)[:, None]
    maps, dull = torch.zeros_like(grid), first.constant.new_zeros(len(read), count)
    texts: list[TextMap] = []
    for b, one in enumerate(read):
        seen = times[b, : len(one.tokens)] > 0
        own = grid[b, :, : len(one.tokens)]
        maps[b, :, : len(one.tokens)][:, seen] = normalise(own[:, seen], signed=first.signed, axes=1)
        dull[b] = is_constant(own[:, seen], axes=1)[:, 0]
        texts.append(text_map(one, own, seen.tolist(), first.signed, reading.join))

    def by_text(name: str) -> Tensor | None:
        parts = [getattr(e, name) for e in found]
        if parts[0] is None:
            return None
        return torch.stack([parts[g][j] for g, j in where])

    logits, targets = by_text("logits"), by_text("targets")
    starts = torch.tensor([next(i for i, w in enumerate(windows) if w.text == b) for b in range(len(read))])
    return replace(
        first, maps=maps.float(), grid=grid, constant=dull, text=tuple(texts), seconds=sum(e.seconds for e in found),
        logits=None if logits is None else _mean_by_text(logits, windows, len(read)),
        targets=None if targets is None else targets[starts.to(targets.device)],
    )  # fmt: skip
