"""Compare methods on prompts: those that find the word that is copied are better than a random order."""

from __future__ import annotations

import pytest
import torch

import vitrail
from tests.text.language import MarkedCopy, language_model, word_tokens
from tests.zoo.vision_language import CASES, LABEL, TOKENIZER
from vitrail.errors import InputError
from vitrail.targets import token
from vitrail.tools.removal_curves import faithfulness
from vitrail.trust.question_check import QuestionRemoval

pytestmark = pytest.mark.filterwarnings("ignore::vitrail.errors.MapWarning")
PROMPTS = [
    "the city of France is in the city and Anna has the red key , Ben opens",
    "Anna has the blue door in France and Ben is in the city of Rome",
    "the door of Anna is green and the city of Ben is one of two",
    "a red key opens the door of the city in France",
] * 3


def test_methods_that_find_the_copied_word_are_recommended():
    methods = ["gradient_x_input", "raw_attention"]
    found = vitrail.compare(MarkedCopy(), PROMPTS, methods, tokenizer=word_tokens(), batch_size=12)
    assert {row.method for row in found.rows} == {*methods, "random"}
    assert found.recommended in methods
    assert found.rows[0].ranked.value.value > found.rows[-1].ranked.value.value + 0.3
    assert found.removal == "mask"
    assert vitrail.compare(
        MarkedCopy(), PROMPTS, ["gradient_x_input"], tokenizer=word_tokens(), target=token("blue", against="red")
    ).rows


def test_faithfulness_of_the_right_order_is_the_highest():
    model, tokenizer = MarkedCopy(), word_tokens()
    found = vitrail.explain(model, PROMPTS[:1], methods=["gradient_x_input", "random"], tokenizer=tokenizer)
    columns, removal = faithfulness(found["random"].source, found, [0.1, 0.5], lambda _: None)
    assert removal == "mask"
    assert columns["gradient_x_input"].shape == (1, 1)
    assert columns["gradient_x_input"][0, 0] > 0.8


def test_too_many_prompts_and_encoders_are_refused():
    model, tokenizer = language_model()
    with pytest.raises(InputError, match="65 prompts are too many"):
        vitrail.compare(model, ["Anna has"] * 65, ["random"], tokenizer=tokenizer)


def test_cells_of_images_are_removed_in_the_order_of_each_map():
    """The curves of both methods by hand, from the scores of the model without some cells."""
    pytest.importorskip("transformers")
    case, target = CASES["llava"](), token(f"w{LABEL}")
    compared = vitrail.compare(case.model, case.inputs, ["gradient_x_input"], tokenizer=TOKENIZER, target=target)
    assert (compared.images, compared.removal) == (2, "mean")
    given = {"tokenizer": TOKENIZER, "target": target}
    found = vitrail.explain(case.model, case.inputs, methods=["gradient_x_input", "random"], **given)
    expected = []
    for b in range(2):
        remove = QuestionRemoval(found["random"].source, found["random"], b, 0)
        curves = {}
        for name, e in found.items():
            order = e.grid[b, 0].flatten().argsort(descending=True, stable=True)
            rows = [(order[n:].sort().values, order[: 16 - n].sort().values) for n in (2, 4, 8, 12, 14)]
            values = [[float(remove(kept[None], remove.score)[0]) for kept in row] for row in rows]
            curves[name] = torch.tensor(values, dtype=torch.float64)
        extent = max(float(c.max()) for c in curves.values()) - min(float(c.min()) for c in curves.values())
        own = curves["gradient_x_input"]
        expected.append(float((own[:, 1] - own[:, 0]).mean()) / extent)
    row = next(row for row in compared.rows if row.method == "gradient_x_input")
    assert row.ranked.value.value == pytest.approx(sum(expected) / 2, rel=1e-4)
