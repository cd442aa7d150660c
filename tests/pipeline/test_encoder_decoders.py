"""Encoder–decoders: words, patches and sound of the encoder for words that the decoder writes."""

from __future__ import annotations

import warnings
from functools import cache

import pytest
import torch

import vitrail
from tests.zoo.number_words import NumberWords, log_odds
from tests.zoo.written_words import CASES
from vitrail.errors import InputError, NotApplicableError, OptionError
from vitrail.targets import answer, contrast, token

pytest.importorskip("transformers")
METHODS = ["transformer_mm", "attnlrp", "gradient_x_input"]
ATTENDED = ["bart", "marian", "t5", "whisper", "trocr"]
FAST = ("bart", "trocr")


def marked(names):
    return [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in names]


@cache
def case_of(name):
    return CASES[name]()


def explain(model, inputs, target, methods=METHODS, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return vitrail.explain(model, inputs, methods=methods, target=target, **options)


@pytest.mark.parametrize("name", marked(ATTENDED))
def test_a_token_is_the_score_at_the_end_of_the_decoder(name):
    case = case_of(name)
    written = torch.tensor([[case.start, 9, 12], [case.start, 4, 33]])
    given = case.inputs | {"decoder_input_ids": written}
    by_name = explain(case.model, given, token("w7", score="logit"), tokenizer=NumberWords())
    by_function = explain(case.model, given, lambda output: output.logits[:, -1, 7])
    for method in METHODS:
        expected = by_function[method].grid
        assert torch.allclose(by_name[method].grid, expected, atol=1e-9 * float(expected.abs().max()) + 1e-12), method
        assert by_name[method].label(0, 0).startswith("' w7'")
    if case.tokens:
        assert by_name["attnlrp"].text[1].words == tuple(f"w{i}" for i in case.inputs["input_ids"][1].tolist())


@pytest.mark.parametrize("name", marked(ATTENDED))
def test_an_answer_is_written_by_the_decoder(name):
    """The sum of log-probabilities after the start token, which the config states."""
    case = case_of(name)
    found = explain(case.model, case.inputs, answer("w7 w9"), ["gradient_x_input"], tokenizer=NumberWords())
    written = torch.tensor([[case.start, 7]] * 2)

    def score(output):
        each = output.logits.log_softmax(-1)
        return each[:, 0, 7] + each[:, 1, 9]

    given = case.inputs | {"decoder_input_ids": written}
    expected = explain(case.model, given, score, ["gradient_x_input"])["gradient_x_input"].grid
    assert torch.allclose(found["gradient_x_input"].grid, expected, atol=1e-9)


def test_texts_are_tokenized_and_padded():
    case = case_of("bart")
    texts = ["w5 w6 w7 w8", "w9 w10"]
    found = explain(case.model, texts, token("w7"), ["attnlrp"], tokenizer=NumberWords())["attnlrp"]
    assert [one.words for one in found.text] == [("w5", "w6", "w7", "w8"), ("w9", "w10")]
    alone = explain(case.model, texts[1], token("w7"), ["attnlrp"], tokenizer=NumberWords())["attnlrp"]
    assert torch.allclose(found.text[1].scores, alone.text[0].scores, atol=1e-9)


def test_a_sound_and_an_image_are_mapped():
    e = explain(case_of("trocr").model, case_of("trocr").inputs, token(7), ["transformer_mm"])["transformer_mm"]
    assert e.maps.shape == (2, 1, 64, 64)
    assert e.overlay().size == (64, 64)


@pytest.mark.slow
def test_windowed_encoders_are_refused_by_name():
    case = case_of("donut")
    assert explain(case.model, case.inputs, token(7), ["gradient_x_input"])["gradient_x_input"].grid.any()
    with pytest.raises(NotApplicableError, match=r"windows|several streams|number of tokens|between two sequences"):
        explain(case.model, case.inputs, token(7), ["transformer_mm"])


def test_what_does_not_fit_is_named():
    case = case_of("bart")
    with pytest.raises(InputError, match="read by its tokenizer: pass tokenizer="):
        vitrail.explain(case.model, ["w5 w6"], "attnlrp", target=token(7))


def test_without_a_target_the_first_written_word_is_explained():
    """Images and sounds have no tokenizer; the word has its number."""
    case = CASES["trocr"]()
    found = vitrail.explain(case.model, case.inputs, "gradient_x_input")
    start = torch.tensor([[case.start]] * 2)
    best = case.model(**case.inputs, decoder_input_ids=start).logits[:, -1].argmax(-1).tolist()
    assert [row[0].pinned.index for row in found.named_targets] == best


@pytest.mark.parametrize("name", ["bart", "trocr"])
def test_a_contrast_of_answers_is_the_difference_of_their_maps(name):
    """For gradient times input that is the map of the difference of log-probabilities."""
    case, options = case_of(name), {"methods": ["gradient_x_input"], "tokenizer": NumberWords()}
    first, second = answer("w7 w9"), answer("w8 w10 w11")
    both, one, other = (
        explain(case.model, case.inputs, target, **options)["gradient_x_input"]
        for target in ([[contrast(first, second), second]], first, second)
    )
    scale = float(one.grid.abs().max())
    assert both.grid.shape[:2] == both.maps.shape[:2] == (2, 2)
    assert torch.allclose(both.grid[:, 0], one.grid[:, 0] - other.grid[:, 0], atol=1e-6 * scale)
    assert torch.allclose(both.grid[:, 1], other.grid[:, 0], atol=1e-6 * scale)
    assert float(both.maps[:, 0].abs().amax()) == pytest.approx(1)
    assert both.maps.shape[2:] == one.maps.shape[2:]
    pinned = both.named_targets[0][0].pinned
    assert pinned.first.total == pytest.approx(one.named_targets[0][0].pinned.total, abs=1e-5)


# -- units and checks ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("units", ["tokens", "sentences", ["w5 w6 w7", "w9"]])
def test_the_score_of_a_unit_is_the_sum_of_its_tokens(units):
    case, text = case_of("bart"), "w5 w6 w7 w8 w9"
    plain = explain(case.model, text, token("w7"), METHODS, tokenizer=NumberWords())
    found = explain(case.model, text, token("w7"), METHODS, tokenizer=NumberWords(), units=units)
    members = {"tokens": [[i] for i in range(5)], "sentences": [[0, 1, 2, 3, 4]]}
    for method in METHODS:
        tokens = plain[method].grid[0, 0]
        expected = torch.stack([tokens[own].sum() for own in (members.get(str(units)) or [[0, 1, 2], [4]])])
        assert torch.allclose(found[method].text[0].scores[0], expected.cpu(), atol=1e-12), method


def test_removal_removes_whole_units_of_the_encoder():
    """Shapley values of two passages, by the four calls that define them."""
    case, passages = case_of("bart"), ["w5 w6 w7", "w8 w9"]
    found = explain(case.model, " ".join(passages), token("w7"), ["shapley"], tokenizer=NumberWords(), units=passages)[
        "shapley"
    ]

    def value(first, second):
        mask = torch.tensor([[first] * 3 + [second] * 2])
        given = {"input_ids": torch.tensor([[5, 6, 7, 8, 9]]), "attention_mask": mask}
        written = torch.tensor([[case.start]])
        with torch.no_grad():
            return float(case.model(**given, decoder_input_ids=written).logits[0, -1].log_softmax(-1)[7])

    whole, one, other, none = value(1, 1), value(1, 0), value(0, 1), value(0, 0)
    expected = [(one - none + whole - other) / 2, (other - none + whole - one) / 2]
    assert found.text[0].scores[0].tolist() == pytest.approx(expected, abs=1e-6)


def test_units_of_images_are_refused():
    case = case_of("trocr")
    with pytest.raises(OptionError, match="parts of a text, and the encoder reads none"):
        explain(case.model, case.inputs, token(7), units="words")


def test_images_of_an_encoder_are_checked():
    case = case_of("trocr")
    inputs = {name: value[:1] for name, value in case.inputs.items()}
    for target in (token(7), answer([7, 9])):
        e = explain(case.model, inputs, target, ["gradient_x_input"], check=True)["gradient_x_input"]
        check = e.checks[0, 0]
        assert e.label(0, 0).startswith("'token 7'" if target == token(7) else "'token 7, token 9'")
        assert check.class_similarity is not None  # another word was explained in the same call
        with torch.no_grad():
            scores = case.model(**inputs, decoder_input_ids=torch.tensor([[case.start, 7]])).logits
        each = scores[0].log_softmax(-1)
        expected = log_odds(scores[:, 0], 7) if target == token(7) else each[0, 7] + each[1, 9]
        assert check.probability == pytest.approx(float(expected), abs=1e-5)


def test_what_stands_for_the_input_of_the_encoder_or_decoder_is_refused():
    case = case_of("bart")
    read = case.model.get_encoder()(input_ids=case.inputs["input_ids"])
    with pytest.raises(InputError, match="leave encoder_outputs out"):
        explain(case.model, {"encoder_outputs": read, "decoder_input_ids": torch.tensor([[2]] * 2)}, token(7))
    with pytest.raises(InputError, match="labels are turned into what the decoder"):
        explain(case.model, case.inputs | {"labels": torch.tensor([[7, 9]] * 2)}, token(7))
    written = {"decoder_input_ids": torch.tensor([[2, 5, 1], [2, 5, 6]])}
    padded = written | {"decoder_attention_mask": torch.tensor([[1, 1, 0], [1, 1, 1]])}
    with pytest.raises(InputError, match="written after the padding"):
        explain(case.model, case.inputs | padded, answer([7, 9]))
    whole = written | {"decoder_attention_mask": torch.ones(2, 3).long()}
    one, other = (
        explain(case.model, case.inputs | more, answer([7, 9]), ["gradient_x_input"])["gradient_x_input"].grid
        for more in (written, whole)
    )
    assert torch.equal(one, other)
