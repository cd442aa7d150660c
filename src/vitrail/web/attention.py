"""What one token attends to, in every layer and head, from the library's own pass."""

from __future__ import annotations

from typing import Any

import torch

from vitrail.capture.forward import forward_pass
from vitrail.capture.frozen import unwrap
from vitrail.capture.structure import UNCHAINED_KINDS, read_structure
from vitrail.capture.trace import ALL
from vitrail.errors import InputError, NotApplicableError
from vitrail.text.tokens import encode
from vitrail.web.encoding import packed
from vitrail.web.model import ServedModel


def attention_of(served: ServedModel, source: Any, token: int) -> dict[str, Any]:
    """Attention from a patch to all patches, or from a token of a text to all its tokens.

    Args:
        served: The model.
        source: The picture as the model sees it, shape (height, width, 3), or the text.
        token: Index of the patch, row by row, or of the token, special ones counted.

    Returns:
        ``layers``, each with a map a head; ``grid`` or ``tokens`` say what the maps' cells are. What is paid to tokens
        before the patches (``prefix`` of them) is left out, so a map of a patch need not sum to one.

    Raises:
        NotApplicableError: No attention matrix joins all patches.
        InputError: There is no such token.
    """
    if served.structure.kind != "plain":
        raise NotApplicableError(
            f"{served.title} {UNCHAINED_KINDS[served.structure.kind]}: attention of a patch is shown for "
            "plain transformers only"
        )
    model, model_inputs = unwrap(served.about.module), served.model_inputs(source)
    structure = read_structure(model, model_inputs)
    text = served.reading is not None
    prefix = 0 if text else structure.layout.prefix or 0
    count = structure.tokens - prefix
    if not 0 <= token < count:
        raise InputError(f"there is no token {token}: give from 0 to {count - 1}")
    grid = None if text else structure.layout.grid
    rows, columns = grid or (1, count)
    with forward_pass(model, model_inputs, structure, [{"A": ALL}]) as one, torch.no_grad():
        blocks = [block.A for block in one.trace().blocks if not block.pool]
    layers = [
        {"heads": [packed(head[prefix + token, prefix:].view(rows, columns), signed=False) for head in A[0]]}
        for A in blocks
    ]
    tokens: list[str] | None = None
    if served.reading is not None:
        tokens = list(encode([source], served.reading, model)[0].tokens)
    return {"grid": list(grid) if grid else None, "tokens": tokens, "layers": layers, "prefix": prefix}
