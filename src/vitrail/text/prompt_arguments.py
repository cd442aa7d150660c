"""Which arguments of a language model can be passed beside the tokens of its prompts; the others are refused by name.

Prompts are padded and extended in calls of Vitrail's own, which hold tokens and a mask of padding alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from inspect import signature
from typing import Any

import torch
from torch import nn

from vitrail.capture.frozen import unwrap
from vitrail.errors import InputError
from vitrail.inputs.call_arguments import refuse_cache

#: Arguments that change no score, and what tokenizers return beside the arguments of models.
_NEUTRAL = {
    "input_ids", "attention_mask", "labels", "use_cache", "logits_to_keep", "num_logits_to_keep", "return_dict",
    "output_attentions", "output_hidden_states", "special_tokens_mask", "offset_mapping", "length",
    "overflowing_tokens", "num_truncated_tokens", "overflow_to_sample_mapping",
}  # fmt: skip
#: What else can be done about an argument.
_AS_IT_IS = "or leave tokenizer out: target=vitrail.targets.token(id) explains the call as it is"


def check_prompt_arguments(model: nn.Module, inputs: Mapping[str, Any]) -> None:
    """Refuse arguments that would be left out of the calls, and masks that hide more than padding.

    Args:
        model: The language model.
        inputs: Its arguments, with ``input_ids``.

    Raises:
        InputError: The scores of the prompts depend on an argument that prompts do not have.
    """
    refuse_cache(inputs)
    taken = signature(unwrap(model).forward).parameters
    ids = torch.as_tensor(inputs["input_ids"])
    ids = ids[None] if ids.dim() == 1 else ids
    given = inputs.get("attention_mask")
    mask = torch.ones_like(ids) if given is None else torch.as_tensor(given).to(ids.device)
    if mask.numel() != ids.numel():
        raise InputError(
            f"the attention mask has shape {tuple(mask.shape)}, and prompts are padded by one of shape "
            f"{tuple(ids.shape)}: pass one prompt in each row, {_AS_IT_IS}"
        )
    mask = mask.reshape(ids.shape).bool()
    places = mask.long().cumsum(1)
    total = places[:, -1:]
    if bool(((places > 0) & (places < total) & ~mask).any()):
        raise InputError(
            "the attention mask hides tokens between others, which is no padding: leave these tokens out of the "
            f"prompt, {_AS_IT_IS}"
        )
    for name, value in inputs.items():
        if name in _NEUTRAL or value is None or (name == "token_type_ids" and name not in taken):
            continue
        if name == "position_ids" and _counts(torch.as_tensor(value).to(ids.device), places - 1, mask):
            continue
        more = " that do not count the tokens from 0" if name == "position_ids" else ""
        raise InputError(
            f"prompts of a language model take no {name}{more}: leave {name} out, and pass each prompt as a row of "
            f"input_ids, {_AS_IT_IS}"
        )


def _counts(positions: torch.Tensor, expected: torch.Tensor, mask: torch.Tensor) -> bool:
    """Whether positions count the tokens of each row from 0; those of padding do not matter."""
    if positions.dim() == 1:
        positions = positions[None]
    if positions.dim() != 2 or positions.shape[1] != mask.shape[1]:
        return False
    return bool((positions.expand_as(mask) == expected)[mask].all())
