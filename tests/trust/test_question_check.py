"""Checks of questions about images: cells and words leave the stream, and the cells that decide pass."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from PIL import Image

import vitrail
from tests.zoo.vision_language import CASES, LABEL, TOKENIZER
from vitrail.data import QuestionProcessor, Scenes
from vitrail.errors import InputError, OptionError
from vitrail.targets import token
from vitrail.trust.question_check import QuestionRemoval

pytestmark = pytest.mark.filterwarnings("ignore")


@cache
def scene():
    photo = Image.fromarray(Scenes("test", objects=3, coloured=True)[4].image)
    return vitrail.load("scenes-vlm"), photo


def explained(text, methods, **options):
    model, photo = scene()
    processor = QuestionProcessor()
    inputs = processor(images=photo, text=text, return_tensors="pt")
    return vitrail.explain(model, inputs, methods=methods, processor=processor, target=token("yellow"), **options)


@pytest.mark.slow
def test_the_cells_that_decide_pass_and_others_do_not():
    found = explained("What colour is the fish?", ["attnlrp", "random"])
    checks = found.check(tests=["removal", "class"])
    check = checks["attnlrp"]
    assert check.passed
    assert check.unit == "patches"  # a question of five words keeps them
    assert check.probability == pytest.approx(found["attnlrp"].named_targets[0][0].pinned.probability, rel=1e-4)
    assert check.removed[0] < check.null_removed[0] - 0.05
    assert check.class_similarity < 0.5
    assert not checks["random"].passed


def test_words_are_removed_too_where_there_are_enough():
    pytest.importorskip("transformers")
    case = CASES["llava"]()
    ids = torch.cat([case.inputs["input_ids"], torch.arange(10, 26).expand(2, -1)], 1)
    longer = case.inputs | {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    e = vitrail.explain(case.model, longer, "gradient_x_input", tokenizer=TOKENIZER, target=token(f"w{LABEL}"))
    check = e.check(1, tests=["removal", "noise"])
    assert check.unit == "patches and words"
    assert set(check.controls) == {"centre", "words"}
    assert "as many patches and words elsewhere" in check.sentences[0]
    assert check.noise_similarity > 0.9


def test_removed_tokens_have_the_mean_vector():
    pytest.importorskip("transformers")
    case = CASES["llava"]()
    e = vitrail.explain(case.model, case.inputs, "random", tokenizer=TOKENIZER, target=token(f"w{LABEL}"))
    remove = QuestionRemoval(e.source, e, 1, 0)
    vectors = remove.vectors.clone()
    mean = vectors[:, 1:17].mean(1)  # image tokens
    cells = torch.tensor([[i for i in range(16) if i not in (2, 7)]])
    vectors[:, [3, 8]] = mean
    mask = case.inputs["attention_mask"][1:]
    with torch.no_grad():
        expected = case.model(inputs_embeds=vectors, attention_mask=mask).logits[0, -1].log_softmax(-1)[LABEL]
    assert float(remove(cells, remove.score)[0]) == pytest.approx(float(expected), rel=1e-5)
    assert e.source.covers[1].shape == (16 + 6, e.source.covers[1].shape[1])
    assert e.source.covers[1].sum(1).tolist() == [1.0] * 22


def test_overviews_are_removed_with_most_of_their_cells():
    pytest.importorskip("transformers")
    case = CASES["llava_next"]()
    e = vitrail.explain(case.model, case.inputs, "random", tokenizer=TOKENIZER, target=token(f"w{LABEL}"))
    remove, count = QuestionRemoval(e.source, e, 0, 0), e.grid[0, 0].numel()
    whole = remove.cover.sum(0)[remove.cover.sum(0) > 0]
    assert torch.allclose(whole, torch.ones_like(whole))  # every image token is on the cells once
    assert int((remove.cover.sum(0) > 0).sum()) == case.tokens
    assert remove.count == count < case.tokens


def test_errors_say_what_to_do():
    pytest.importorskip("transformers")
    case = CASES["llava"]()
    e = vitrail.explain(case.model, case.inputs, "random", tokenizer=TOKENIZER, target=token(f"w{LABEL}"))
    with pytest.raises(InputError, match="16 cells of the image or words are too few to be checked: use at least 20"):
        e.check()
    with pytest.raises(OptionError, match="removal='blur' is not 'mean'"):
        e.check(removal="blur")
