"""Texts as targets of CLIP-like models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from vitrail.errors import ModelError, require
from vitrail.models.loaded import LoadedModel


def embed_texts(about: LoadedModel, texts: Sequence[str]) -> Tensor:
    """Embeddings of texts by an open_clip model, shape (K, d).

    Args:
        about: An open_clip model, loaded by name so that its tokenizer is known.
        texts: What to look for.
    """
    open_clip: Any = require("open_clip", "clip", "read texts for CLIP models")
    encode: Any = getattr(about.module, "encode_text", None)
    source, _, name = about.name.partition(":")
    if encode is None or source != "open_clip":
        raise ModelError(f"{about.name} has no text side that can be used by name: pass target=vitrail.similarity(…)")
    tokens = open_clip.get_tokenizer(name.partition("/")[0])(list(texts))
    device = next(about.module.parameters()).device
    with torch.no_grad():
        return encode(tokens.to(device))  # type: ignore[no-any-return]
