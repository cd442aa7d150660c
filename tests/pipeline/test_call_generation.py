"""Tokens that vision-language models and encoder–decoders write, explained one by one, in words and images."""

from __future__ import annotations

import json
import re
import warnings
from functools import cache

import pytest
import torch

import vitrail
from tests.zoo.number_words import NumberWords
from tests.zoo.pairs import WIDTH
from tests.zoo.vision_language import CASES, TOKENIZER
from vitrail.errors import InputError, OptionError
from vitrail.targets import answer, token

pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore::vitrail.errors.MapWarning")
case_of = cache(lambda name: CASES[name]())


def first(name):
    inputs = case_of(name).inputs
    return {key: value[:1] for key, value in inputs.items()}


def longer(inputs, ids):
    """The call with further words."""
    if "decoder_input_ids" in inputs:
        return inputs | {"decoder_input_ids": torch.cat([inputs["decoder_input_ids"], torch.tensor([ids])], 1)}
    words = torch.cat([inputs["input_ids"], torch.tensor([ids])], 1)
    return inputs | {"input_ids": words, "attention_mask": torch.ones_like(words)}


@pytest.mark.parametrize("name", ["llava", pytest.param("florence2", marks=pytest.mark.slow)])
def test_tokens_are_the_likeliest_with_their_log_probabilities(name):
    model, inputs = case_of(name).model, first(name)
    g = vitrail.explain_generation(model, inputs, "gradient_x_input", processor=TOKENIZER, max_new_tokens=3)
    written = [int(word[1:]) for word in g.words]
    assert len(written) == len(g) == 3
    for t, index in enumerate(written):
        given = longer(inputs, written[:t]) if t else inputs
        with torch.no_grad():
            scores = model(**given).logits[0, -1].log_softmax(-1)
        assert int(scores.argmax()) == index
        assert g.log_probabilities[t] == pytest.approx(float(scores[index]), abs=1e-5)


@pytest.mark.parametrize("method", ["gradient_x_input", "transformer_mm", "attnlrp"])
def test_each_row_is_the_explanation_of_its_token(method):
    model, inputs, ids = case_of("llava").model, first("llava"), [9, 10, 7]
    g = vitrail.explain_generation(model, inputs, method, tokenizer=TOKENIZER, continuation="w9 w10 w7")
    assert g.matrix.shape == (3, g.prompt_tokens + 3)
    assert g.words == ("w9", "w10", "w7")
    for t, index in enumerate(ids):
        given = longer(inputs, ids[:t]) if t else inputs
        e = vitrail.explain(model, given, method, tokenizer=TOKENIZER, target=token(index))
        count = g.prompt_tokens + t
        assert len(e.text[0].tokens) == count
        scale = float(e.grid.abs().max())
        assert torch.allclose(g.grid[t], e.grid[0, 0].float(), atol=1e-5 * scale)
        assert torch.allclose(g.matrix[t, :count], e.text[0].token_scores[0].float(), atol=1e-4 * scale)
        assert not g.matrix[t, count:].any()


def test_padded_prompts_give_what_each_gives_alone():
    model, inputs = case_of("llava").model, first("llava")
    padded = {k: torch.nn.functional.pad(v, (3, 0)) if v.dim() == 2 else v for k, v in inputs.items()}
    both = {k: torch.cat([v, v]) for k, v in padded.items()}
    alone = vitrail.explain_generation(model, inputs, "gradient_x_input", tokenizer=TOKENIZER, continuation=[9, 10])
    found = vitrail.explain_generation(
        model, both, "gradient_x_input", tokenizer=TOKENIZER, continuation=[[9, 10], [9, 10]]
    )
    assert len(found) == 2
    for g in found:
        assert g.text == alone.text
        assert torch.allclose(g.matrix, alone.matrix, atol=1e-5)
        assert torch.allclose(g.grid, alone.grid, atol=1e-5)


def test_the_page_shows_the_image_and_what_is_saved_is_loaded(tmp_path):
    g = vitrail.explain_generation(
        case_of("llava").model, first("llava"), "gradient_x_input", tokenizer=TOKENIZER, continuation=[9, 10]
    )
    data = json.loads(re.search(r'<script id="data"[^>]*>(.*?)</script>', g.html(), re.DOTALL)[1])
    assert data["image"]["source"].startswith("data:image/png;base64,")
    shades = torch.tensor(data["image"]["shades"]).view(2, data["image"]["rows"], data["image"]["columns"])
    assert torch.allclose(shades, g.grid / g.grid.abs().amax((1, 2), keepdim=True), atol=1e-3)
    again = vitrail.GenerationExplanation.load(g.save(tmp_path / "saved"))
    assert torch.equal(again.grid, g.grid)
    assert again.html() == g.html()
    assert again.image_overlay("w10").tobytes() == g.image_overlay(1).tobytes()
    assert again.image_overlay(0).size == (64, 64)


def test_what_does_not_fit_is_refused():
    model, inputs = case_of("llava").model, first("llava")
    with pytest.raises(InputError, match="pass tokenizer=…, or processor=…"):
        vitrail.explain_generation(model, inputs)
    with pytest.raises(OptionError, match="leave units out"):
        vitrail.explain_generation(model, inputs, tokenizer=TOKENIZER, units="sentences")
    with pytest.raises(InputError, match="2 prompts need a list of as many continuations"):
        vitrail.explain_generation(model, case_of("llava").inputs, tokenizer=TOKENIZER, continuation="w9")


@pytest.mark.parametrize("name", ["t5", pytest.param("trocr", marks=pytest.mark.slow)])
def test_sources_of_an_encoder_decoder_are_those_of_its_encoder(name):
    """Every row is the explanation of the token after those that the decoder has written."""
    words = name == "t5"
    tokenizer = NumberWords()
    model = encoder_decoder(name)
    given = "w5 w9 w12" if words else {"pixel_values": torch.randn(1, 3, 64, 64)}
    g = vitrail.explain_generation(model, given, "gradient_x_input", tokenizer=tokenizer, continuation=[7, 9])
    assert g.words == ("w7", "w9")
    assert g.matrix.shape == (2, 5 if words else 2)
    assert g.prompt.split() == (["w5", "w9", "w12"] if words else [])
    inputs = {"input_ids": torch.tensor([[5, 9, 12]])} if words else given
    for t, index in enumerate((7, 9)):
        written = {**inputs, "decoder_input_ids": torch.tensor([[0, 7][: t + 1]])}
        e = vitrail.explain(model, written, "gradient_x_input", tokenizer=tokenizer, target=token(index))
        with torch.no_grad():
            expected = float(model(**written).logits[0, -1].log_softmax(-1)[index])
        assert g.log_probabilities[t] == pytest.approx(expected, abs=1e-5)
        if words:
            assert torch.allclose(g.matrix[t, :3], e.text[0].token_scores[0].float(), atol=1e-6)
        else:
            assert torch.allclose(g.grid[t], e.grid[0, 0].float(), atol=1e-6)
            assert g.image_overlay(t).size == (64, 64)


def encoder_decoder(name):
    import transformers

    torch.manual_seed(0)
    if name == "t5":
        sizes = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4, "vocab_size": 60}
        return transformers.T5ForConditionalGeneration(transformers.T5Config(decoder_start_token_id=0, **sizes)).eval()
    encoder = transformers.ViTConfig(**WIDTH, image_size=64, patch_size=16)
    decoder = transformers.TrOCRConfig(
        vocab_size=60, d_model=32, decoder_layers=2, decoder_attention_heads=4, decoder_ffn_dim=48,
        cross_attention_hidden_size=32, max_position_embeddings=32,
        pad_token_id=1, bos_token_id=0, eos_token_id=2, decoder_start_token_id=0,
    )  # fmt: skip
    config = transformers.VisionEncoderDecoderConfig.from_encoder_decoder_configs(encoder, decoder)
    config.decoder_start_token_id, config.pad_token_id = 0, 1
    return transformers.VisionEncoderDecoderModel(config).eval()


@pytest.mark.parametrize("start", [True, False])
def test_an_answer_of_florence_is_written_by_its_decoder(start):
    """The log-probabilities are those of the decoder, after what it has written or after its start token."""
    case = case_of("florence2")
    inputs = {k: v for k, v in case.inputs.items() if start or k != "decoder_input_ids"}
    before = inputs.get("decoder_input_ids", torch.tensor([[2]] * 2))
    ids = torch.cat([before, torch.tensor([[9, 10, 7]] * 2)], 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        e = vitrail.explain(case.model, inputs, "gradient_x_input", tokenizer=TOKENIZER, target=answer([9, 10, 7]))
    leaf = inputs["pixel_values"].clone().requires_grad_()
    scores = case.model(**inputs | {"decoder_input_ids": ids, "pixel_values": leaf}).logits.log_softmax(-1)
    own = torch.stack([scores[:, before.shape[1] - 1 + i, index] for i, index in enumerate((9, 10, 7))], 1)
    for row, record in zip(own.tolist(), e.named_targets, strict=True):
        assert record[0].pinned.log_probabilities == pytest.approx(row, abs=1e-5)
    expected = (torch.autograd.grad(own.sum(), leaf)[0] * leaf).sum(1).detach()
    assert torch.allclose(e.grid[:, 0], expected, atol=1e-5 * float(expected.abs().max()))


def test_the_sources_of_words_in_a_sound_are_shown_on_its_spectrogram():
    """Time from left to right, low frequencies at the bottom."""
    from tests.zoo.written_words import CASES as WRITTEN

    case = WRITTEN["whisper"]()
    inputs = {name: value[:1] for name, value in case.inputs.items()}
    for method, shape in (("gradient_x_input", (16, 64)), ("attnlrp", (1, 32))):
        g = vitrail.explain_generation(case.model, inputs, method, tokenizer=NumberWords(), continuation="w9 w7")
        assert g.grid.shape == (2, *shape)
        written = torch.tensor([[case.start, 9]])
        e = vitrail.explain(
            case.model, inputs | {"decoder_input_ids": written}, method, tokenizer=NumberWords(), target=token("w7")
        )
        assert e.grid.any()
        assert torch.equal(g.grid[1], e.grid[0, 0].float().flip(0))
        assert g.image_overlay("w7").size == (64, 16)
    sound = inputs["input_features"][0]
    loudest = divmod(int(sound.argmax()), 64)
    assert g.pixels[15 - loudest[0], loudest[1]].tolist() == [255] * 3
