"""Arguments beside the tokens of a prompt: those that change nothing pass, others are refused, and none is dropped."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import vitrail
from tests.text.language import PROMPT, language_model
from vitrail.errors import InputError
from vitrail.targets import token

MODEL, TOKENIZER = language_model()
IDS: torch.Tensor = TOKENIZER(PROMPT, return_tensors="pt")["input_ids"]
COUNT = IDS.shape[1]
PACKED = torch.tensor([[*range(3), *range(COUNT - 3)]])


def explained(inputs: dict[str, Any], **options: Any) -> torch.Tensor:
    return vitrail.explain(MODEL, inputs, "gradient_x_input", **options).grid[0, 0]


def hidden(*places: int) -> torch.Tensor:
    return torch.tensor([[int(i not in places) for i in range(COUNT)]])


@pytest.mark.parametrize(
    "more",
    [
        {"labels": IDS},
        {"position_ids": torch.arange(COUNT)[None]},
        {"use_cache": True},
        {"token_type_ids": torch.zeros_like(IDS)},  # Llama has none
        {"past_key_values": None},
    ],
    ids=lambda more: next(iter(more)),
)
def test_neutral_arguments_change_nothing(more: dict[str, Any]) -> None:
    expected = explained({"input_ids": IDS}, tokenizer=TOKENIZER, target="Paris")
    assert expected.any()
    assert torch.equal(explained({"input_ids": IDS, **more}, tokenizer=TOKENIZER, target="Paris"), expected)


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"position_ids": PACKED}, "position_ids"),
        ({"inputs_embeds": torch.zeros(1, COUNT, 16)}, "inputs_embeds"),
        ({"attention_mask": torch.ones(1, 1, COUNT, COUNT)}, r"\(1, 1, 6, 6\)"),
        ({"attention_mask": hidden(2)}, "between others"),
        ({"past_key_values": object()}, "past_key_values"),
    ],
    ids=["packed", "vectors", "pairs", "hole", "cache"],
)
def test_arguments_that_would_be_left_out_are_refused(more: dict[str, Any], reason: str) -> None:
    given = {"input_ids": IDS, **more}
    with pytest.raises(InputError, match=reason):
        explained(given, tokenizer=TOKENIZER, target="Paris")
    with pytest.raises(InputError, match=reason):
        vitrail.explain_generation(MODEL, given, tokenizer=TOKENIZER, max_new_tokens=1)


def test_segments_of_a_model_that_reads_them_are_refused() -> None:
    gpt2, tokenizer = language_model("GPT2")  # adds a vector for each
    given = {"input_ids": IDS, "token_type_ids": torch.zeros_like(IDS)}
    with pytest.raises(InputError, match="token_type_ids"):
        vitrail.explain(gpt2, given, "gradient_x_input", tokenizer=tokenizer)


def gradients(score: int, **more: Any) -> torch.Tensor:
    """Gradient × input of a logit, by autograd alone."""
    vectors = MODEL.get_input_embeddings()(IDS).detach().requires_grad_()
    output = MODEL(inputs_embeds=vectors, **more)
    (gradient,) = torch.autograd.grad(output.logits[0, -1, score], vectors)
    return (gradient * vectors).sum(-1)[0].detach()


@pytest.mark.parametrize(
    "more",
    [
        {"attention_mask": hidden(2)},
        {"position_ids": PACKED, "use_cache": False},
        {"position_ids": PACKED, "use_cache": True},
        {"attention_mask": torch.block_diag(torch.ones(3, 3), torch.ones(3, 3)).tril().bool()[None, None]},
    ],
    ids=["hole", "packed", "one text", "pairs"],
)
def test_a_call_without_a_tokenizer_runs_as_it_is(more: dict[str, Any]) -> None:
    found = explained({"input_ids": IDS, **more}, target=token(9, score="logit"))
    torch.testing.assert_close(found, gradients(9, **more).to(found))


def test_positions_whose_meaning_depends_on_the_cache_are_refused() -> None:
    assert MODEL.config.use_cache
    assert not torch.allclose(*(gradients(9, position_ids=PACKED, use_cache=on) for on in (True, False)))
    with pytest.raises(InputError, match="use_cache"):
        explained({"input_ids": IDS, "position_ids": PACKED}, target=token(9))


def test_the_cache_of_a_user_is_left_as_it_is() -> None:
    cache = MODEL(input_ids=IDS[:, :3], use_cache=True).past_key_values
    with pytest.raises(InputError, match="past_key_values"):
        explained({"input_ids": IDS[:, 3:], "past_key_values": cache}, target=token(9))
    assert cache.get_seq_length() == 3
