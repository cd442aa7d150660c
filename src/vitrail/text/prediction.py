"""Class scores of texts, whose windows run through the model."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from vitrail.capture.frozen import frozen
from vitrail.capture.inputs import ModelInputs
from vitrail.capture.outputs import class_logits
from vitrail.errors import ModelError
from vitrail.text.tokens import EncodedText, TokenizerSettings, TokenWindow, encode_texts, pad_windows

DEFAULT_BATCH_SIZE = 8
"""Windows in one forward pass."""


def predict_texts(
    texts: Sequence[str], settings: TokenizerSettings, model: nn.Module, batch_size: int = DEFAULT_BATCH_SIZE
) -> Tensor:
    """Logits of texts, shape (B, C): the mean over the windows of each text."""
    return text_logits(model, encode_texts(texts, settings, model), settings, batch_size)


def text_logits(model: nn.Module, encoded: Sequence[EncodedText], settings: TokenizerSettings, size: int) -> Tensor:
    """Logits of encoded texts, shape (B, C), with at most ``size`` windows in a forward pass."""
    windows = [window for one in encoded for window in one.windows]
    order = sorted(range(len(windows)), key=lambda i: len(windows[i]))
    rows: list[Tensor] = [torch.empty(0)] * len(windows)
    with frozen(model), torch.inference_mode():
        for start in range(0, len(order), size):
            batch = order[start : start + size]
            inputs = ModelInputs((), pad_windows([windows[i] for i in batch], padding_id_of(settings)))
            logits = class_logits(model, inputs.onto(model).into(model))
            if logits is None:
                raise ModelError(f"{type(model).__name__} returns no class scores: load a sequence classifier")
            for i, row in zip(batch, logits.clone(), strict=True):
                rows[i] = row
    return mean_by_text(torch.stack(rows), windows, len(encoded))


def padding_id_of(settings: TokenizerSettings) -> int:
    """Id of the padding token; 0 where the tokenizer has none."""
    padding_id = settings.tokenizer.pad_token_id
    return 0 if padding_id is None else int(padding_id)


def mean_by_text(rows: Tensor, windows: Sequence[TokenWindow], texts: int) -> Tensor:
    """Mean of the rows of each text's windows, shape (texts, …)."""
    owner = torch.tensor([w.text for w in windows], device=rows.device)
    total = rows.new_zeros(texts, *rows.shape[1:]).index_add(0, owner, rows)
    count = torch.bincount(owner, minlength=texts).to(rows)
    return total / count.view(-1, *[1] * (rows.dim() - 1))
