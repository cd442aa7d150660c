"""Prompts of language models: batches, padding, chats, tokens and answers, units, and a model with a known source."""

from __future__ import annotations

import json

import pytest
import torch

import vitrail
from tests.battery.decoders import FAMILIES
from tests.text.language import PROMPT, MarkedCopy, language_model, word_tokens
from vitrail.errors import InputError, ModelError, NotApplicableError, OptionError, TargetError
from vitrail.targets import answer, contrast, saved_targets, token
from vitrail.text.rendering import coloured_words, words_html

pytestmark = pytest.mark.filterwarnings("ignore::vitrail.errors.MapWarning")
ONE_PASS = ["attnlrp:gamma_linear=0", "transformer_mm", "gradient_x_input", "rollout"]
PROMPTS = [PROMPT, "Anna has the red code .", "Ben has"]


def close(one, other, tolerance=1e-9):
    """Norms and rotations of some families are in single precision: sums are then alike to about 1e-6."""
    return torch.allclose(one, other, rtol=10 * tolerance, atol=tolerance * max(1e-12, float(other.abs().max())))


def logits(model, tokenizer, text):
    return model(**tokenizer(text, return_tensors="pt", return_token_type_ids=False)).logits[0].detach()


# -- one by one ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "family", [pytest.param(f, marks=() if f in ("GPT2", "Llama") else pytest.mark.slow) for f in FAMILIES]
)
def test_a_batch_of_prompts_equals_single_prompts(family):
    model, tokenizer = language_model(family)
    tolerance = {"Bloom": 1e-6, "Mixtral": 1e-5}.get(family, 1e-9)  # in single precision, in part or whole
    methods = {name: {} for name in [*ONE_PASS, "shapley:forwards=20"]}
    together = vitrail.explain(model, PROMPTS, methods=methods, tokenizer=tokenizer)
    for i, prompt in enumerate(PROMPTS):
        alone = vitrail.explain(model, prompt, methods=methods, tokenizer=tokenizer)
        best = int(logits(model, tokenizer, prompt)[-1].argmax())
        for name in methods:
            n = alone[name].grid.shape[2]
            assert alone[name].named_targets[0][0].pinned.index == best
            assert close(together[name].grid[i, :, :n], alone[name].grid[0], tolerance), name
            assert not together[name].grid[i, :, n:].any()
            assert close(together[name].text[i].scores, alone[name].text[0].scores, tolerance)


@pytest.mark.parametrize("family", ["GPT2", "Llama", pytest.param("OPT", marks=pytest.mark.slow)])
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_on_either_side_changes_nothing(family, side):
    model, tokenizer = language_model(family)
    tokenizer = word_tokens()
    tokenizer.padding_side = side
    batch = tokenizer(PROMPTS, padding=True, return_tensors="pt", return_token_type_ids=False)
    found = vitrail.explain(model, batch, methods=ONE_PASS, tokenizer=tokenizer)
    texts = vitrail.explain(model, PROMPTS, methods=ONE_PASS, tokenizer=tokenizer)
    for name in ONE_PASS:
        assert found[name].grid.shape == (3, 1, batch["input_ids"].shape[1])
        for i in range(len(PROMPTS)):
            valid = batch["attention_mask"][i].bool()
            own = texts[name].grid[i, 0, : int(valid.sum())]
            assert close(found[name].grid[i, 0, valid], own), (name, i)
            assert not found[name].grid[i, 0, ~valid].any()
            assert close(found[name].text[i].token_scores, texts[name].text[i].token_scores)


def test_scores_of_other_positions_are_not_computed():
    model, tokenizer = language_model()
    seen = []
    handle = model.lm_head.register_forward_hook(lambda *given: seen.append(given[1][0].shape[1]))
    try:
        vitrail.explain(model, PROMPTS, "gradient_x_input", tokenizer=tokenizer)
    finally:
        handle.remove()
    assert seen
    assert max(seen) <= len(PROMPTS)  # one position a prompt


# -- targets ---------------------------------------------------------------------------------------------------------


def test_a_token_is_named_by_its_text_or_id_at_any_position():
    model, tokenizer = language_model()
    expected = logits(model, tokenizer, PROMPT)
    paris = tokenizer.convert_tokens_to_ids("Paris")
    for target in ("Paris", paris, token("Paris"), token(paris), contrast("Paris", "Rome").first):
        e = vitrail.explain(model, PROMPT, "gradient_x_input", tokenizer=tokenizer, target=target)
        record = e.named_targets[0][0].pinned
        assert (record.index, record.name) == (paris, "Paris")
        assert record.probability == pytest.approx(float(expected[-1].softmax(0)[paris]))
    inner = vitrail.explain(model, PROMPT, "gradient_x_input", tokenizer=tokenizer, target=token("Paris", position=2))
    cut = vitrail.explain(model, "the capital", "gradient_x_input", tokenizer=tokenizer, target="Paris")
    assert close(inner.grid[0, 0, :3], cut.grid[0, 0])
    assert not inner.grid[0, 0, 3:].any()  # later words have no relevance


def test_a_contrast_of_tokens_is_the_difference_of_their_logits():
    model, tokenizer = language_model()
    one, other, both = (
        vitrail.explain(model, PROMPT, "gradient_x_input", tokenizer=tokenizer, target=target).grid
        for target in (
            token("Paris", score="logit"),
            token("Rome", score="logit"),
            contrast(token("Paris"), token("Rome")),
        )
    )
    assert close(both, one - other, 1e-5)
    e = vitrail.explain(model, PROMPT, "gradient_x_input", tokenizer=tokenizer, target="top3")
    ranked = logits(model, tokenizer, PROMPT)[-1].topk(3).indices.tolist()
    assert [record.pinned.index for record in e.named_targets[0]] == ranked


def test_a_token_is_explained_by_its_log_odds():
    model, tokenizer = language_model()
    ids = tokenizer(PROMPT, return_tensors="pt")["input_ids"]
    number = tokenizer.convert_tokens_to_ids("Paris")

    def log_odds(output):
        return output.logits[:, -1].softmax(-1)[:, number].logit()

    found = vitrail.explain(model, PROMPT, "gradient_x_input", tokenizer=tokenizer, target="Paris").grid
    expected = vitrail.explain(model, {"input_ids": ids}, "gradient_x_input", target=log_odds).grid
    assert close(found[..., 1:], expected[..., 1:], 1e-5)  # the first token is special, and has no relevance here
    named = token("Paris", score="logodds")
    assert close(found, vitrail.explain(model, PROMPT, "gradient_x_input", tokenizer=tokenizer, target=named).grid, 0)


def test_an_answer_is_the_sum_of_the_log_probabilities_of_its_tokens():
    model, tokenizer = language_model()
    words = ["Paris", ",", "red"]
    ids = tokenizer.convert_tokens_to_ids(words)
    scores = logits(model, tokenizer, f"{PROMPT} {' '.join(words)}").log_softmax(-1)
    start = len(tokenizer(PROMPT)["input_ids"])
    expected = [float(scores[start + i - 1, index]) for i, index in enumerate(ids)]
    e = vitrail.explain(model, PROMPT, "gradient_x_input", tokenizer=tokenizer, target=answer("Paris , red"))
    pinned = e.named_targets[0][0].pinned
    assert pinned.log_probabilities == pytest.approx(expected)
    assert pinned.total == pytest.approx(sum(expected))
    assert pinned.tokens == tuple(words)
    assert e.grid.shape == (1, 1, start)  # the prompt alone
    prefix = f"{PROMPT} Paris ,"
    steps = [
        vitrail.explain(
            model, prefix, "gradient_x_input", tokenizer=tokenizer,
            target=token(word, position=start - 1 + i, score="logprob"),
        ).grid[0, 0, :start]
        for i, word in enumerate(words)
    ]  # fmt: skip
    assert close(e.grid[0, 0], sum(steps), 1e-5)
    one = vitrail.explain(model, PROMPT, "gradient_x_input", tokenizer=tokenizer, target=answer("Paris"))
    same = vitrail.explain(
        model, PROMPT, "gradient_x_input", tokenizer=tokenizer, target=token("Paris", score="logprob")
    )
    assert close(one.grid, same.grid, 1e-5)


@pytest.mark.parametrize("method", ["gradient_x_input", "attnlrp:gamma_linear=0", "shapley:forwards=40"])
def test_a_contrast_of_answers_is_the_difference_of_their_maps(method):
    model, tokenizer = language_model()
    first, second = answer("Paris , red"), answer("Rome is")

    def grid(target, prompt=PROMPT):
        return vitrail.explain(model, prompt, method, tokenizer=tokenizer, target=target).grid

    assert close(grid(contrast(first, second)), grid(first) - grid(second), 1e-5)
    rows = vitrail.explain(model, PROMPTS[:2], method, tokenizer=tokenizer, target=[[first, second]])
    assert rows.grid.shape[:2] == (2, 2)
    assert close(rows.grid[1, 1], grid(second, PROMPTS[1])[0, 0])
    # Answers of one token need no appended tokens and are read in one pass.
    single = grid(contrast(answer("Paris"), answer("Rome")))
    assert close(single, grid(token("Paris", against="Rome")), 1e-4)
    others = vitrail.explain(model, PROMPT, method, tokenizer=tokenizer, target=contrast(first, "others"))
    assert len(others.named_targets[0][0].pinned.against) == 5


def test_targets_are_saved_and_read_again(tmp_path):
    model, tokenizer = language_model()
    targets = [[token("Paris", against="Rome"), contrast(answer("Paris , red"), answer("Rome is")), answer("Ben")]]
    e = vitrail.explain(model, PROMPT, "gradient_x_input", tokenizer=tokenizer, target=targets)
    e.save(tmp_path)
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert [one["title"] for one in manifest["named_targets"][0]] == [e.label(0, k) for k in range(3)]
    assert manifest["named_targets"][0][2]["pinned"]["total"] == pytest.approx(e.named_targets[0][2].pinned.total)
    again = vitrail.explain(model, PROMPT, "gradient_x_input", tokenizer=tokenizer, target=saved_targets(tmp_path))
    assert close(again.grid, e.grid)
    records = json.loads((tmp_path / "words.json").read_text())
    assert [word["word"] for word in records[0]["words"]] == PROMPT.split()


# -- a known source --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "method", ["attnlrp:gamma_linear=0", "transformer_mm", "gradient_x_input", "shapley:forwards=200"]
)
def test_the_word_that_is_copied_is_the_most_relevant(method):
    model, tokenizer = MarkedCopy(), word_tokens()
    for colour, prompt in (("red", "Anna has the red key and Ben opens"), ("blue", "the blue door is in the city")):
        e = vitrail.explain(model, prompt, method, tokenizer=tokenizer)
        assert e.named_targets[0][0].pinned.name == colour
        assert e.text[0].top(1)[0][0] == colour
    before = token("red", position=5)  # read after "key"; <s> is at position 0
    e = vitrail.explain(model, "Anna has the red key and the blue door", method, tokenizer=tokenizer, target=before)
    assert e.text[0].top(1)[0][0] == "red"
    assert not e.grid[0, 0, 6:].any()


# -- inputs ----------------------------------------------------------------------------------------------------------


def test_a_chat_is_its_template():
    model, tokenizer = language_model()
    chat = [{"role": "user", "content": "who has the red key ?"}]
    e = vitrail.explain(model, chat, "gradient_x_input", tokenizer=tokenizer)
    rendered = "user says who has the red key ? . assistant says"
    assert e.text[0].text == rendered
    plain = vitrail.explain(model, rendered, "gradient_x_input", tokenizer=word_tokens(bos=False))
    assert close(e.text[0].scores, plain.text[0].scores)
    both = vitrail.explain(model, [chat, PROMPT], "gradient_x_input", tokenizer=tokenizer)
    assert close(both.text[0].scores, e.text[0].scores)


@pytest.mark.parametrize(
    ("units", "words"),
    [
        ("tokens", ("Anna", "has", "red", ".", "Ben", "is", "blue", ".")),
        ("words", ("Anna", "has", "red.", "Ben", "is", "blue.")),
        ("sentences", ("Anna has red.", "Ben is blue.")),
        ("paragraphs", ("Anna has red. Ben is blue.",)),
        (["Anna has", "Ben"], ("Anna has", "Ben")),
        ([(0, 13), (14, 26)], ("Anna has red.", "Ben is blue.")),
    ],
)
def test_the_score_of_a_unit_is_the_sum_of_its_tokens(units, words):
    model, tokenizer = language_model()
    text = "Anna has red. Ben is blue."
    e = vitrail.explain(model, text, "gradient_x_input", tokenizer=tokenizer, units=units).text[0]
    assert e.words == words
    tokens = vitrail.explain(model, text, "gradient_x_input", tokenizer=tokenizer).text[0]
    for span, score in zip(e.spans, e.scores[0], strict=True):
        inside = [i for i, (a, b) in enumerate(tokens.token_spans) if span[0] <= a < b <= span[1]]
        assert float(score) == pytest.approx(float(tokens.token_scores[0, inside].sum()))


def test_removal_methods_remove_whole_units():
    model, tokenizer = language_model()
    text = "Anna has red. Ben is blue."
    call = {"tokenizer": tokenizer, "target": token("Paris", score="logprob"), "units": "sentences"}
    found = vitrail.explain(model, text, "shapley:forwards=40", **call).text[0]
    batch = tokenizer(text, return_tensors="pt", return_token_type_ids=False)
    ids, paris = batch["input_ids"], tokenizer.convert_tokens_to_ids("Paris")

    def value(first, second):
        mask = torch.tensor([[1, *[first] * 4, *[second] * 4]])
        return float(model(input_ids=ids, attention_mask=mask).logits[0, -1].log_softmax(0)[paris].detach())

    nothing, all_words = value(0, 0), value(1, 1)
    first = (value(1, 0) - nothing + all_words - value(0, 1)) / 2
    assert found.scores[0].tolist() == pytest.approx([first, all_words - nothing - first], rel=1e-6)


# -- errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prompt", "options", "error", "words"),
    [
        (PROMPT, {"target": "Parisian"}, TargetError, "not in the vocabulary"),
        (PROMPT, {"target": "Paris , red"}, TargetError, r"3 tokens: 'Paris' \(id 9\)"),
        (PROMPT, {"target": 4000}, TargetError, "token 4000 does not exist: the vocabulary has 40 tokens"),
        (PROMPT, {"target": token("Rome", position=40)}, TargetError, "the prompt has 6 tokens"),
        ("", {}, InputError, "prompt 0 is empty"),
        ("Anna " * 40, {}, InputError, "has 41 tokens, and the model takes 32: shorten it by 9"),
        (["Anna", 3], {}, InputError, "prompt 1 is a int"),
        ({"attention_mask": torch.ones(1, 2)}, {}, InputError, "needs input_ids"),
        (PROMPT, {"units": "letters"}, OptionError, "is not one of 'tokens', 'words'"),
        (PROMPT, {"units": ["Rome"]}, InputError, "the passage 'Rome' is not in the text"),
        (PROMPT, {"target": contrast(answer("Ben"), token("Anna"))}, TargetError, "compares an answer"),
    ],
)  # fmt: skip
def test_errors_say_what_to_do(prompt, options, error, words):
    model, tokenizer = language_model()
    with pytest.raises(error, match=words):
        vitrail.explain(model, prompt, "gradient_x_input", tokenizer=tokenizer, **options)


def test_a_missing_tokenizer_is_named():
    model, tokenizer = language_model()
    with pytest.raises(InputError, match="tokenizer="):
        vitrail.explain(model, PROMPT)
    ids = tokenizer(PROMPT, return_tensors="pt", return_token_type_ids=False)
    with pytest.raises(TargetError, match="needs the tokenizer of the model: pass tokenizer="):
        vitrail.explain(model, ids, "gradient_x_input", target=token("Paris"))
    paris = tokenizer.convert_tokens_to_ids("Paris")
    e = vitrail.explain(model, ids, "gradient_x_input", target=token(paris))  # ids need none
    named = vitrail.explain(model, PROMPT, "gradient_x_input", tokenizer=tokenizer, target="Paris")
    assert close(e.grid[..., 1:], named.grid[..., 1:])  # <s> is a token like others where the tokenizer is unknown


@pytest.mark.parametrize(
    ("value", "reason"),
    [(torch.nan, "weights are not finite: head.weight"), (3e38, "scores of MarkedCopy are not finite")],
)
def test_scores_that_are_not_finite_are_refused(value, reason):
    model = MarkedCopy()
    with torch.no_grad():
        model.head.weight[0] = value
    with pytest.raises(ModelError, match=reason):
        vitrail.explain(model, PROMPT, "gradient_x_input", tokenizer=word_tokens(), target="Paris")


def test_long_prompts_fold(tmp_path):
    long = "Anna has the red key " + "the city of France is in the city . " * 40
    e = vitrail.explain(MarkedCopy(), long, "gradient_x_input", tokenizer=word_tokens())
    page = (e.save(tmp_path) / "text.html").read_text(encoding="utf-8")
    assert page.count("<summary>… 40 words …</summary>") == len(long.split()) // 40 - 1
    assert "<summary>" not in words_html(
        {"m": vitrail.explain(MarkedCopy(), PROMPT, "random", tokenizer=word_tokens())}
    )
    assert str(coloured_words(e.text[0])).count("… 40 words …") == len(long.split()) // 40 - 1


def test_special_tokens_of_a_template_are_no_part_of_words():
    model, _ = language_model()
    tokenizer = word_tokens(bos=False)
    tokenizer.chat_template = "{% for m in messages %}<s>{{ m['role'] }} says {{ m['content'] }}</s>{% endfor %}"
    chat = [{"role": "user", "content": "who has the key"}]
    e = vitrail.explain(model, chat, "gradient_x_input", tokenizer=tokenizer)
    assert e.text[0].text == "<s>user says who has the key</s>"
    assert e.text[0].words == ("user", "says", "who", "has", "the", "key")


def test_what_is_missing_or_too_long_is_named():
    model, tokenizer = language_model()
    ids = {"input_ids": torch.tensor([[1, 5, 6]])}
    for prompt in (PROMPT, [PROMPT], [{"role": "user", "content": "Hello"}]):
        with pytest.raises(InputError, match=r"LlamaForCausalLM is a language model.*tokenizer=transformers"):
            vitrail.explain(model, prompt, "attnlrp")
    for target in (None, "Paris"):
        with pytest.raises(InputError, match=r"or target=vitrail\.targets\.token\(id\)"):
            vitrail.explain(model, ids, "attnlrp", target=target)
    with pytest.raises(InputError, match=r"tokenizer='gpt2' is no tokenizer: pass .*from_pretrained\('gpt2'\)"):
        vitrail.explain(model, PROMPT, "attnlrp", tokenizer="gpt2")
    with pytest.raises(TargetError, match=r"'Rome Ben' is 2 tokens: 'Rome' \(id 10\), 'Ben' \(id 12\)"):
        vitrail.explain(model, PROMPT, "attnlrp", tokenizer=tokenizer, target=token("Paris", against="Rome Ben"))
    with pytest.raises(InputError, match="prompt 0 has 61 tokens, and the model takes 32: shorten it by 29"):
        vitrail.explain(model, "Anna " * 60, "attnlrp", tokenizer=tokenizer)
    long = {"input_ids": torch.full((1, 60), 5)}
    with pytest.raises(InputError, match="the text has 60 tokens, and GPT2LMHeadModel takes 32"):
        vitrail.explain(language_model("GPT2")[0], long, "attnlrp", target=token(5))


# -- the default -----------------------------------------------------------------------------------------------------


def test_without_attention_the_default_is_gradient_times_input():
    """It is named in a warning; the default method itself is refused where it was asked for."""
    from tests.zoo.decoders import mamba
    from vitrail.errors import GuessWarning, NotApplicableError

    model, tokenizer = mamba(), word_tokens()
    with pytest.warns(GuessWarning, match="gradient_x_input is used in place of the default: .*no attention"):
        found = vitrail.explain(model, PROMPT, tokenizer=tokenizer)
    expected = vitrail.explain(model, PROMPT, "gradient_x_input", tokenizer=tokenizer)
    assert found.method == "gradient_x_input"
    assert torch.equal(found.grid, expected.grid)
    with pytest.raises(NotApplicableError):
        vitrail.explain(model, PROMPT, "attnlrp:released", tokenizer=tokenizer)


class LearnedTokens(torch.nn.Module):
    """A decoder with learned vectors in front of each text, as prompt tuning trains them."""

    def __init__(self):
        super().__init__()
        self.decoder, _ = language_model()
        self.learned = torch.nn.Parameter(torch.randn(3, 16, dtype=torch.float64))

    def get_input_embeddings(self):
        return self.decoder.get_input_embeddings()

    def can_generate(self):
        return True

    def forward(self, input_ids):
        vectors = self.get_input_embeddings()(input_ids)
        return self.decoder(inputs_embeds=torch.cat([self.learned.expand(len(vectors), -1, -1), vectors], 1)).logits


@pytest.mark.filterwarnings("ignore::vitrail.errors.GuessWarning")
def test_learned_tokens_in_front_of_a_text_are_not_taken_for_its_words():
    model, tokenizer = LearnedTokens().eval(), word_tokens(bos=False)
    with pytest.raises(TargetError, match="8 positions, and 5 were expected"):
        vitrail.explain(model, PROMPT, "gradient_x_input", tokenizer=tokenizer, target=token(9))
    with pytest.raises(NotApplicableError, match="map of 8 tokens, and the prompt has 5"):
        vitrail.explain(model, PROMPT, "transformer_mm", tokenizer=tokenizer, target=lambda scores: scores[:, -1, 9])
    found = vitrail.explain(
        model, PROMPT, "gradient_x_input", tokenizer=tokenizer, target=lambda scores: scores[:, -1, 9]
    )
    ids = tokenizer(PROMPT, return_tensors="pt")["input_ids"]
    vectors = model.get_input_embeddings()(ids).detach().requires_grad_()
    whole = torch.cat([model.learned[None], vectors], 1)
    (gradient,) = torch.autograd.grad(model.decoder(inputs_embeds=whole).logits[0, -1, 9], vectors)
    assert close(found.grid[0, 0], (gradient * vectors).sum(-1)[0].detach())


def test_the_number_of_last_positions_is_read():
    model, tokenizer = language_model()
    ids = tokenizer(PROMPT, return_tensors="pt")["input_ids"]
    expected = vitrail.explain(model, {"input_ids": ids}, "gradient_x_input", target=token(9)).grid
    for last in (0, 1, 3):
        inputs = {"input_ids": ids, "logits_to_keep": last}
        assert torch.equal(vitrail.explain(model, inputs, "gradient_x_input", target=token(9)).grid, expected)
    with pytest.raises(TargetError, match="no scores of position 2"):
        vitrail.explain(model, inputs, "gradient_x_input", target=token(9, position=2))


def test_no_more_tokens_are_explained_than_the_vocabulary_has():
    model, tokenizer = language_model()
    found = vitrail.explain(model, PROMPT, "gradient_x_input", tokenizer=tokenizer, target="top40")
    assert len({record.pinned.index for record in found.named_targets[0]}) == 40
    with pytest.raises(TargetError, match="the next token of rank 41 does not exist"):
        vitrail.explain(model, PROMPT, "gradient_x_input", tokenizer=tokenizer, target="top41")
