"""Texts: padding, words, windows, rendering and saving, rationale scores, and a model with a decisive word."""

from __future__ import annotations

import json
from functools import cache

import numpy as np
import pytest
import torch
from rich.console import Console
from sklearn.metrics import average_precision_score
from typer.testing import CliRunner

import vitrail
from tests.text.texts import FAMILIES, reviews, text_model, train_classifier
from vitrail.errors import FigureSizeError, InputError, NotApplicableError, OptionError
from vitrail.methods import METHODS
from vitrail.scores import rationale
from vitrail.text import TokenizerSettings
from vitrail.text.prediction import predict_texts
from vitrail.text.rendering import html, terminal
from vitrail.text.tokens import encode_texts, load_tokenizer, word_scores

pytestmark = pytest.mark.filterwarnings("ignore::vitrail.errors.MapWarning")

TEXTS = [
    "The film is unwatchable, tedious!", "A superb story", "the plot of the film is dreadful and the music lovely.",
]  # fmt: skip
LONG = "the plot of the film is lovely and the city at night , with a camera , superb . " * 3
TEXT_METHODS = {n: dict(m.quick) for n, m in METHODS.items() if m.reason_against("text") is None}
VARIANTS = {s: {} for s in (
    "gradcam:bert", "raw_attention:column", "rollout:vit_explain", "rollout:per_head,discard=0.5", "gradtoken:0",
    "gradtoken:1", "gradtoken:2", "gradtoken:3", "attcat:query=readout", "vtranm:necc_over=patches", "leadlight:fast",
    "vtranm:per_head=false", "bi_attn:token,steps=2", "bi_attn:bert,steps=2", "attattr:start=0,steps=2",
)}  # fmt: skip


@cache
def cached_model(family="bert"):
    return text_model(family)


def close(one, other):
    scale = float(other.abs().max())
    return torch.allclose(one, other, rtol=1e-9, atol=1e-9 * max(scale, 1e-300))


# -- padding -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", [f if f == "bert" else pytest.param(f, marks=pytest.mark.slow) for f in FAMILIES])
def test_a_batch_of_texts_equals_single_texts(family):
    model, tokenizer = cached_model(family)
    methods = {**TEXT_METHODS, **(VARIANTS if family == "bert" else {})}
    if family == "albert":
        del methods["value_zeroing"]  # all its blocks are one module
    together = vitrail.explain(model, TEXTS, methods=methods, tokenizer=tokenizer, target=[0, 2, 1])
    for i, (text, target) in enumerate(zip(TEXTS, [0, 2, 1], strict=True)):
        alone = vitrail.explain(model, text, methods=methods, tokenizer=tokenizer, target=target)
        for name in methods:
            own, n = alone[name], alone[name].grid.shape[2]
            assert own.text[0].windows == 1
            assert close(together[name].grid[i, :, :n], own.grid[0]), name
            assert not together[name].grid[i, :, n:].any(), name
            assert close(together[name].text[i].scores, own.text[0].scores), name
            assert torch.allclose(together[name].maps[i, :, :n], own.maps[0], atol=1e-6), name
            assert bool(together[name].constant[i, 0]) == bool(own.constant[0, 0]), name


def test_padding_does_not_change_scores_of_tensor_inputs():
    model, tokenizer = cached_model()
    batch = tokenizer(TEXTS, padding=True, return_tensors="pt")
    wider = tokenizer(TEXTS, padding="max_length", max_length=22, return_tensors="pt")
    keys = ("input_ids", "attention_mask")
    a, b = (vitrail.explain(model, {k: f[k] for k in keys}, methods=TEXT_METHODS, target=1) for f in (batch, wider))
    n = batch["input_ids"].shape[1]
    for name in TEXT_METHODS:
        assert close(b[name].grid[..., :n], a[name].grid), name
        assert torch.allclose(b[name].maps[..., :n], a[name].maps, atol=1e-6), name
        assert not b[name].maps[..., n:].any(), name


def test_mean_pooling_ignores_padding():
    class MeanPooling(torch.nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner, self.config = inner, inner.config

        def forward(self, input_ids, attention_mask):
            x = self.inner.bert(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
            weights = attention_mask[..., None].to(x)
            return self.inner.classifier((x * weights).sum(1) / weights.sum(1))

    model, tokenizer = cached_model()
    methods = [
        n
        for n, method in METHODS.items()
        if n in TEXT_METHODS and method.applies.reads == "attention" and method.family in ("attention", "gradient")
    ]
    together = vitrail.explain(MeanPooling(model), TEXTS, methods=methods, tokenizer=tokenizer, target=1)
    for i, text in enumerate(TEXTS):
        alone = vitrail.explain(MeanPooling(model), text, methods=methods, tokenizer=tokenizer, target=1)
        assert "mean of the patches" in alone[methods[0]].structure["readout"]
        for name in methods:
            assert close(together[name].text[i].scores, alone[name].text[0].scores), name


@pytest.mark.parametrize("family", ["bert", "deberta", "deberta-v2"])
def test_attention_methods_match_the_attentions_the_model_returns(family):
    model, tokenizer = text_model(family, **({"attn_implementation": "eager"} if family == "bert" else {}))
    batch = tokenizer(TEXTS[0], return_tensors="pt")
    out = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], output_attentions=True)
    A = [a[0] for a in out.attentions]
    dA = [g[0] for g in torch.autograd.grad(out.logits[0, 1], out.attentions)]
    inside = ~tokenizer(TEXTS[0], return_special_tokens_mask=True, return_tensors="pt")["special_tokens_mask"][0].bool()
    eye = torch.eye(A[0].shape[-1], dtype=torch.float64)
    R = eye.clone()
    for a, g in zip(A, dA, strict=True):
        R = R + (a * g).clamp_min(0).mean(0) @ R
    roll = eye.clone()
    for a in A:
        roll = (a.mean(0) + eye) / 2 @ roll
    cam = (dA[-1].mean((1, 2))[:, None] * A[-1][:, 0]).mean(0).clamp_min(0)
    expected = {
        "raw_attention": A[-1].mean(0)[0], "rollout": roll[0], "transformer_mm": R[0], "gradcam:bert": cam,
        "gradsam": torch.stack([(a * g.clamp_min(0)).mean((0, 1)) for a, g in zip(A, dA, strict=True)]).mean(0),
    }  # fmt: skip
    found = vitrail.explain(model, TEXTS[0], methods=list(expected), tokenizer=tokenizer, target=1)
    for name, row in expected.items():
        assert torch.allclose(found[name].grid[0, 0, inside], row[inside], rtol=1e-6, atol=1e-9), name
        assert not found[name].grid[0, 0, ~inside].any()


def test_gradients_at_the_word_embeddings():
    model, tokenizer = cached_model()
    ids = tokenizer(TEXTS[0], return_tensors="pt")["input_ids"]
    leaf = model.get_input_embeddings()(ids).detach()

    def gradient(x):
        x = x.clone().requires_grad_()
        return torch.autograd.grad(model(inputs_embeds=x).logits[0, 1], x)[0]

    steps = [gradient((t + 0.5) / 8 * leaf) for t in range(8)]
    both = {"gradient_x_input": gradient(leaf), "integrated_gradients:rule=midpoint,steps=8": sum(steps) / 8}
    for name, slope in both.items():
        found = vitrail.explain(model, TEXTS[0], name, tokenizer=tokenizer, target=1)
        assert close(found.grid[0, 0, 1:-1], (leaf * slope).sum(-1)[0, 1:-1]), name
    with pytest.raises(NotApplicableError, match="noise is drawn"):
        vitrail.explain(model, TEXTS[0], "smoothgrad", tokenizer=tokenizer)


def test_probabilities_of_a_text_model_are_not_passed_through_softmax_again():
    model, tokenizer = cached_model()

    class Softmaxed(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.config, self.inner = model.config, model

        def forward(self, input_ids=None, attention_mask=None, token_type_ids=None):
            return self.inner(input_ids, attention_mask, token_type_ids).logits.softmax(-1)

    settings = TokenizerSettings(tokenizer)
    expected = predict_texts(TEXTS, settings, model).softmax(1)
    assert torch.allclose(predict_texts(TEXTS, settings, Softmaxed().eval()).softmax(1), expected)


# -- words and windows -------------------------------------------------------------------------------------------------


def test_words_sum_their_tokens_and_ignore_special_tokens():
    model, tokenizer = cached_model()
    found = vitrail.explain(model, TEXTS[0], "attcat", tokenizer=tokenizer)
    one = found.text[0]
    assert one.words == ("The", "film", "is", "unwatchable,", "tedious!")
    assert one.tokens == ("[CLS]", "the", "film", "is", "un", "##watch", "##able", ",", "tedious", "!", "[SEP]")
    assert [TEXTS[0][a:b] for a, b in one.spans] == list(one.words)
    token = found.grid[0, 0]
    assert token[0] == token[-1] == 0
    assert torch.allclose(one.scores[0], torch.stack([*token[1:4], token[4:8].sum(), token[8:10].sum()]))
    best = vitrail.explain(model, TEXTS[0], "attcat", tokenizer=TokenizerSettings(tokenizer, reduction="max")).text[0]
    assert torch.allclose(best.scores[0], torch.stack([*token[1:4], token[4:8].max(), token[8:10].max()]))
    assert float(one.normalised.abs().max()) == pytest.approx(1.0)
    assert one.top(1)[0][1] == pytest.approx(float(one.scores.max()))
    roberta, pairs = cached_model("roberta")
    assert vitrail.explain(roberta, TEXTS[2], "rollout", tokenizer=pairs).text[0].words == tuple(TEXTS[2].split())


def test_a_token_over_two_words_is_divided_by_characters():
    scores = torch.tensor([[3.0, 1.0]])
    assert word_scores(scores, [(0, 4), (9, 9)], [(0, 1), (2, 4), (9, 11)]).tolist() == [[1.0, 2.0, 0.0]]
    assert word_scores(scores, [(0, 4), (9, 10)], [(0, 1), (2, 4), (9, 11)], "max").tolist() == [[3.0, 3.0, 1.0]]


@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_long_texts_merge_their_windows(family):
    model, tokenizer = cached_model(family)
    limit = 24 if family == "bert" else 38  # RoBERTa counts positions from padding_idx + 1
    (encoded,) = encode_texts([LONG], TokenizerSettings(tokenizer, overlap=5), model)
    assert max(map(len, encoded.windows)) == limit
    steps = [w.positions[1] - v.positions[1] for v, w in zip(encoded.windows, encoded.windows[1:], strict=False)]
    assert set(steps) == {limit - 2 - 5}
    together = vitrail.explain(
        model, [TEXTS[1], LONG], "transformer_mm", tokenizer=TokenizerSettings(tokenizer, overlap=5)
    )
    total, times, logits = torch.zeros(len(encoded.tokens)).double(), torch.zeros(len(encoded.tokens)), []
    for window in encoded.windows:
        batch = {k: torch.tensor([v]) for k, v in window.inputs.items()}
        logits.append(model(**batch).logits[0].detach())
    mean = torch.stack(logits).mean(0)
    for window in encoded.windows:
        batch = {k: torch.tensor([v]) for k, v in window.inputs.items()}
        own = vitrail.explain(model, batch, "transformer_mm", target=int(mean.argmax())).grid[0, 0]
        for i, at in enumerate(window.positions):
            if at >= 0:
                total[at] += own[i]
                times[at] += 1
    assert int(times.max()) == 2
    assert together.targets[1].item() == int(mean.argmax())
    assert torch.allclose(together.logits[1], mean)
    assert close(together.grid[1, 0], total / times.clamp_min(1))
    assert together.text[1].words == tuple(LONG.split())
    assert torch.allclose(predict_texts([LONG], TokenizerSettings(tokenizer, overlap=5), model)[0], mean)
    cut = vitrail.explain(
        model, LONG, "transformer_mm", tokenizer=TokenizerSettings(tokenizer, all_windows=False)
    ).text[0]
    assert cut.windows == 1
    assert cut.seen[0]
    assert not cut.seen[-1]
    assert len(cut.seen) == len(LONG.split())


def test_one_target_per_text_not_per_window():
    model, tokenizer = cached_model()
    targets = [[0, 2], [1, 0]]
    found = vitrail.explain(model, [LONG, TEXTS[1]], "gradcam", tokenizer=tokenizer, target=targets, batch_size=2)
    assert found.targets.tolist() == [[0, 2], [1, 0]]
    assert found.text[0].scores.shape == (2, len(LONG.split()))
    assert vitrail.explain(model, [LONG, TEXTS[1]], tokenizer=tokenizer, target="top2").targets.shape == (2, 2)
    by_function = vitrail.explain(model, LONG, "gradsam", tokenizer=tokenizer, target=lambda o: o.logits[:, 1])
    assert torch.equal(by_function.grid, vitrail.explain(model, LONG, "gradsam", tokenizer=tokenizer, target=1).grid)


def test_invalid_texts_and_settings_raise():
    import transformers

    model, tokenizer = cached_model()
    slow = transformers.PreTrainedTokenizerFast.__mro__[-2]()
    with pytest.raises(InputError, match="use the fast tokenizer"):
        vitrail.explain(model, "a film", tokenizer=slow)
    with pytest.raises(InputError, match=r"is a text, pass tokenizer"):
        vitrail.explain(model, "a film")
    with pytest.raises(InputError, match="text 1 has no words"):
        vitrail.explain(model, ["a film", "  "], tokenizer=tokenizer)
    with pytest.raises(InputError, match="text 0 is a int"):
        vitrail.explain(model, [3], tokenizer=tokenizer)
    with pytest.raises(OptionError, match="more than the 24 tokens"):
        vitrail.explain(model, LONG, tokenizer=TokenizerSettings(tokenizer, window=99))
    with pytest.raises(InputError, match="overlap=8 is too large"):
        vitrail.explain(model, LONG, tokenizer=TokenizerSettings(tokenizer, window=10, overlap=8))
    with pytest.raises(OptionError, match="reduction='mean'"):
        TokenizerSettings(tokenizer, reduction="mean")


# -- rendering and saving ----------------------------------------------------------------------------------------------


def test_words_are_rendered_and_saved(tmp_path):
    model, tokenizer = cached_model()
    found = vitrail.explain(model, TEXTS[:2], methods=["attcat", "rollout"], tokenizer=tokenizer, target="top2")
    found.save(tmp_path)
    saved = json.loads((tmp_path / "attcat" / "words.json").read_text())
    assert [w["word"] for w in saved[0]["words"]] == TEXTS[0].split()
    assert np.allclose([w["scores"] for w in saved[1]["words"]], found["attcat"].text[1].scores.T)
    page = html(found)
    assert page.count('<div class="words">') == 2 * 2 * 2
    assert "rgba(40,110,190" in page
    assert "rgba(232,93,36" in page
    assert "<script" not in html(vitrail.explain(model, "a <script> film", methods=["rollout"], tokenizer=tokenizer))
    found.figure().savefig(tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 10_000
    with pytest.raises(FigureSizeError, match="lines of words do not fit into one figure"):
        found.figure(font_size=200)
    console = Console(record=True, width=80, force_terminal=True, file=(tmp_path / "o").open("w"))
    console.print(terminal(found["attcat"]))
    assert TEXTS[0] in console.export_text()
    with pytest.raises(InputError, match="no word scores"):
        terminal(vitrail.explain(model, {"input_ids": torch.randint(5, 20, (1, 6))}, "rollout"))


def test_command_explains_texts_with_a_local_model(tmp_path):
    from vitrail.cli.app import app

    model, tokenizer = cached_model()
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    texts = [word for text in TEXTS[:2] for word in ("--text", text)]
    options = ["--model", f"hf:{tmp_path / 'model'}", "--method", "rollout", "--method", "attcat"]
    result = CliRunner().invoke(app, ["explain", *texts, *options, "--out", str(tmp_path / "out")])
    assert result.exit_code == 0, result.exception
    assert "superb" in result.stdout
    assert {p.name for p in (tmp_path / "out").iterdir()} == {"attcat", "rollout", "text.html", "figure.png"}
    with pytest.raises(InputError, match="--model hf:NAME"):
        load_tokenizer("timm:vit_tiny_patch16_224")
    with pytest.raises(InputError, match=r"pass --model hf:gpt2$"):
        load_tokenizer("gpt2")
    with pytest.raises(InputError, match=r"pass --model hf:NAME$"):
        load_tokenizer("scenes-clip")
    with pytest.raises(InputError, match="cannot be loaded"):
        load_tokenizer(f"hf:{tmp_path / 'out'}")


# -- rationale scores --------------------------------------------------------------------------------------------------


def test_token_f1_matches_set_based_f1():
    rng = np.random.default_rng(0)
    scores = [rng.normal(size=n) for n in (30, 50, 90)]
    scores[1][40:] = np.nan
    truths = [rng.random(n) < 0.3 for n in (30, 50, 90)]
    found = rationale.token_f1(scores, truths, top=(5, 10, 80))
    for i, (own, truth) in enumerate(zip(scores, truths, strict=True)):
        ranked = sorted((j for j in range(len(own)) if own[j] == own[j]), key=lambda j, own=own: (-max(own[j], 0), j))
        for c, k in enumerate((5, 10, 80)):
            picked, marked = set(ranked[:k]), set(np.flatnonzero(truth))
            p, r = len(picked & marked) / len(picked), len(picked & marked) / len(marked)
            assert found["f1"][i, c] == pytest.approx(2 * p * r / (p + r) if p and r else 0)
    one, two = rationale.RationaleScores(), rationale.RationaleScores()
    one.add(["a"], {k: v[:1] for k, v in found.items()})
    two.add(["b", "c"], {k: v[1:] for k, v in found.items()})
    tally = two + one
    assert np.allclose(tally.macro(), found["f1"].mean(0))
    hits, picked = found["hits"].sum(0), found["picked"].sum(0)
    assert np.allclose(tally.micro(), 2 * hits / (picked + found["marked"].sum()))
    means = np.stack([found["hits"][:, 0], found["picked"][:, 0], found["marked"]], 1).mean(0)
    assert rationale.micro_f1(means) == pytest.approx(tally.micro()[0])
    assert rationale.token_f1([[1.0, 0.5]], [[0, 0]], top=(1,))["f1"].tolist() == [[0.0]]
    assert rationale.rank_words([-1.0, -2.0, 3.0], clamp=False).tolist() == [2, 0, 1]


def test_average_precision_matches_scikit_learn():
    rng = np.random.default_rng(1)
    scores = [rng.integers(0, 6, 40).astype(float) for _ in range(5)]  # with many ties
    truths = [rng.random(40) < 0.3 for _ in range(5)]
    expected = [average_precision_score(t, s) for s, t in zip(scores, truths, strict=True)]
    assert np.allclose(rationale.word_average_precision(scores, truths)["auprc"], expected)
    assert np.isnan(rationale.word_average_precision([[1.0, 2.0]], [[0, 0]])["auprc"]).all()


def test_comprehensiveness_and_sufficiency_of_a_counting_model():
    def counting(texts, classes):
        return [t.split().count("good") / 4 + c / 100 for t, c in zip(texts, classes, strict=True)]

    words = ["good", "x", "good", "y", "unseen"]
    found = rationale.comprehensiveness_sufficiency(
        counting, [words], [[2.0, 0.0, 1.0, 0.5, np.nan]], [1], shares=(0.25, 0.5)
    )
    assert np.allclose(found["comprehensiveness_at"], [[0.25, 0.5]])
    assert np.allclose(found["sufficiency_at"], [[0.25, 0.0]])
    assert found["comprehensiveness"] == pytest.approx(0.375)
    model, tokenizer = cached_model()
    ask = rationale.class_probability(model, tokenizer)
    blanked = rationale.comprehensiveness_sufficiency(
        ask, [TEXTS[1].split()], [[0, 2, 1]], [2], shares=(0.3,), placeholder="[MASK]"
    )
    shown = (TEXTS[1], "A [MASK] story", "[MASK] superb [MASK]")
    p = [model(**_inputs(tokenizer, t)).logits.softmax(-1)[0, 2].item() for t in shown]
    assert blanked["comprehensiveness"][0] == pytest.approx(p[0] - p[1])
    assert blanked["sufficiency"][0] == pytest.approx(p[0] - p[2])
    assert rationale.span_mask([(1, 3)], 4).tolist() == [False, True, True, False]
    with pytest.raises(InputError, match="outside"):
        rationale.span_mask([(1, 9)], 4)


def _inputs(tokenizer, text):
    return {k: v for k, v in tokenizer(text, return_tensors="pt").items() if k in ("input_ids", "attention_mask")}


# -- a decisive word ---------------------------------------------------------------------------------------------------

#: Fraction of reviews in which a method ranks the decisive word first, for methods below 95 %. Measured on this one
#: model; other seeds give other values. A model of two classes may recognise one of them by the absence of the other's
#: words, and the gradients of a post-norm model are small and may point away from a word it is certain about. Rules
#: that treat the scale of the norms as a constant (conservative_lrp, attnlrp) find the word.
KNOWN_RATES = {
    "gradcam": 0.133, "grad_rollout": 0.767, "attcat": 0.0, "agcam": 0.867, "gradtoken": 0.467, "tam": 0.183,
    "bi_attn": 0.117, "attattr": 0.517, "partial_lrp": 0.517, "transformer_attribution": 0.9, "gradient_x_input": 0.0,
    "integrated_gradients": 0.567, "shapley": 0.917, "grad_eclip": 0.467, "atman": 0.683, "context_cite": 0.933,
}  # fmt: skip


@pytest.mark.slow
def test_the_decisive_word_ranks_first():
    model, tokenizer, generator = train_classifier(100)
    texts, labels, positions = reviews(60, generator)
    methods = {n: o for n, o in TEXT_METHODS.items() if METHODS[n].class_specific and METHODS[n].family != "control"}
    found = vitrail.explain(model, texts, methods=methods, tokenizer=tokenizer, batch_size=60)
    assert torch.equal(next(iter(found.values())).logits.argmax(1), labels)
    for name, explanation in found.items():
        hits = [int(one.scores[0].argmax()) == p for one, p in zip(explanation.text, positions, strict=True)]
        rate = float(np.mean(hits))
        if name in KNOWN_RATES:
            assert rate == pytest.approx(KNOWN_RATES[name], abs=0.1), name
        else:
            assert rate >= 0.95, f"{name}: {rate:.3f}"
