"""The attention from one patch or token, for each layer and head, as the page shows it."""

from __future__ import annotations

from typing import Any

import torch

from vitrail.capture.forward import forward_pass
from vitrail.capture.model_structure import UNCHAINED_KINDS
from vitrail.capture.structure import read_structure
from vitrail.capture.trace import ALL
from vitrail.errors import InputError, NotApplicableError
from vitrail.text.tokens import encode_texts
from vitrail.viz.map_encoding import encode_map
from vitrail.web.served_model import ServedModel


def attention_from(served: ServedModel, raw_input: Any, token: int) -> dict[str, Any]:
    """Compute the attention from one patch to all patches, or from one token of a text to all its tokens.

    Returns:
        ``layers``, each with one map per head; ``grid`` or ``tokens`` describe the cells of a map. Attention to the
        ``prefix`` tokens before the patches is left out, so a map of a patch may sum to less than one.
    """
    if served.media != "image":
        raise NotApplicableError(
            f"the page shows the attention of images and texts: {served.title} takes {served.media}"
        )
    if served.structure.kind != "plain":
        raise NotApplicableError(
            f"{served.title} {UNCHAINED_KINDS[served.structure.kind]}: attention of a patch is available for "
            "plain transformers only"
        )
    model, model_inputs = served.call(raw_input)
    structure = read_structure(model, model_inputs)
    is_text = served.reading is not None
    prefix = 0 if is_text else structure.layout.prefix or 0
    count = structure.tokens - prefix
    if not 0 <= token < count:
        raise InputError(f"token {token} does not exist: give 0 to {count - 1}")
    grid = None if is_text else structure.layout.grid
    rows, columns = grid or (1, count)
    with forward_pass(model, model_inputs, structure, [{"A": ALL}]) as one, torch.no_grad():
        blocks = [block.A for block in one.trace().blocks if not block.pool]
    layers = [
        {"heads": [encode_map(head[prefix + token, prefix:].view(rows, columns), signed=False) for head in A[0]]}
        for A in blocks
    ]
    tokens: list[str] | None = None
    if served.reading is not None:
        tokens = list(encode_texts([raw_input], served.reading, model)[0].tokens)
    return {"grid": list(grid) if grid else None, "tokens": tokens, "layers": layers, "prefix": prefix}
