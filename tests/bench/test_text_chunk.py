"""Benchmarks of texts: a tiny classifier on a few reviews with marked words, against the score functions."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.bench.bench_helpers import open_store
from tests.text.texts import BAD, GOOD, text_model
from vitrail.bench import LocalEngine, PlanError, PlanOverrides, collect_scores, open_run, plans
from vitrail.bench.dry_run import dry_run_plan
from vitrail.bench.report import write_report
from vitrail.bench.results_table import read_results
from vitrail.data import Movies
from vitrail.errors import DataError
from vitrail.pipeline.explain import explain
from vitrail.scores import RationaleScores, class_probability, comprehensiveness_sufficiency, span_mask, token_f1
from vitrail.text import TokenizerSettings

pl = pytest.importorskip("polars")
pytestmark = [pytest.mark.filterwarnings(f"ignore::vitrail.errors.{kind}") for kind in ("MapWarning", "DataWarning")]

PLAN = """
name = "reviews"
models = [{ name = "hf:tiny", label = "classifier", weights = "classifier" }]
methods = ["gradtoken", "rollout", "integrated_gradients:steps=2"]
targets = "both"
protocols = ["rationale", "eraser"]
batch = 2
chunk = 2
dataset = { name = "movies", root = "movies" }
"""
#: Reviews with their label and the marked words; the last is longer than the classifier's window.
REVIEWS = (
    (f"the film is {GOOD[0]} and the story with music {GOOD[1]}", "POS", ((3, 4), (9, 10))),
    (f"a {BAD[0]} plot on a {BAD[1]} night", "NEG", ((1, 2),)),
    (f"the {GOOD[0]} city " + "and the story of the man in the film " * 4 + BAD[0], "POS", ((1, 3), (38, 39))),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a classifier, and reviews in the layout of ERASER."""
    root = tmp_path_factory.mktemp("texts")
    model, tokenizer = text_model("bert", num_labels=2)
    model.config.architectures = [type(model).__name__]
    model.config.id2label = {0: "NEG", 1: "POS"}
    model.save_pretrained(root / "classifier")
    tokenizer.save_pretrained(root / "classifier")
    write_movies(root / "movies")
    return root


def write_movies(root: Path) -> None:
    (root / "docs").mkdir(parents=True)
    lines = []
    for i, (text, label, spans) in enumerate(REVIEWS):
        (root / "docs" / f"review_{i}.txt").write_text(text)
        words = text.split()
        evidence = [{"docid": f"review_{i}.txt", "text": " ".join(words[a:b]), "start_token": a, "end_token": b}
                    for a, b in spans]  # fmt: skip
        lines.append({"annotation_id": f"review_{i}.txt", "classification": label, "evidences": [evidence]})
    (root / "test.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.fixture(scope="module")
def store(folder):
    store = open_store(PLAN, folder / "runs", folder)
    LocalEngine(1).run(store.missing())
    return store


def test_table_equals_the_score_functions(folder, store):
    table = store.merge()
    refused = store.manifest()["refused"]["classifier"]
    assert set(refused) == {"centre", "edges"}
    assert table.filter(pl.col("image") != "")["error"].null_count() == table.filter(pl.col("image") != "").height
    model = store.context.text_model(0)
    settings = TokenizerSettings(model.settings.tokenizer, reduction="max", all_windows=False)
    for sample in Movies(folder / "movies"):
        found = explain(model.loaded, sample.text, "gradtoken", target=sample.label, tokenizer=settings).text[0]
        scores = np.where(found.seen, found.scores[0].double().numpy(), np.nan)
        marked = span_mask(sample.spans, len(sample.tokens))
        f1 = token_f1([scores], [marked])["f1"][0]
        probability = class_probability(model.loaded.module, settings)
        erased = comprehensiveness_sufficiency(probability, [sample.tokens], [scores], [sample.label])
        own = table.filter(pl.col("image") == sample.id, pl.col("method") == "gradtoken", pl.col("target") == "label")
        values = {row["score"]: row["value"] for row in own.to_dicts()}
        assert [values[f"f1@{k}"] for k in (10, 80)] == pytest.approx([f1[0], f1[-1]])
        assert values["f1"] == pytest.approx(f1.mean())
        assert values["marked"] == marked.sum()
        assert values["comprehensiveness"] == pytest.approx(erased["comprehensiveness"][0], abs=1e-6)
        assert set(own["explained"]) == {sample.label}
    assert np.isnan(scores).any(), "the last review is truncated"


def test_report_has_the_curve_of_the_figure(folder, store):
    store.export()
    page = write_report(store.folder).read_text(encoding="utf-8")
    for text in ("k = 10, ", "Micro, k = 80", "AUPRC", "Compr.", "<b>3</b>texts", "number of top words", "3 texts."):
        assert text.rstrip(", ") in page, text
    table = read_results(store.folder)
    scores = collect_scores(table, method="gradtoken", target="label", protocol="rationale")
    summary = RationaleScores()
    reviews = list(Movies(folder / "movies"))
    model = store.context.text_model(0)
    found = explain(model.loaded, [s.text for s in reviews], "gradtoken", target=[s.label for s in reviews],
                    tokenizer=model.settings).text  # fmt: skip
    words = [np.where(one.seen, one.scores[0].double().numpy(), np.nan) for one in found]
    summary.add([s.id for s in reviews], token_f1(words, [span_mask(s.spans, len(s.tokens)) for s in reviews]))
    assert scores.mean("f1@10") == pytest.approx(summary.macro()[0])


@pytest.mark.slow
def test_packaged_plan_runs_with_any_classifier(folder):
    overrides = PlanOverrides({"movies": str(folder / "movies")}, {"classifier": str(folder / "classifier")}, limit=2)
    store = open_run("gradtoken_fig6", folder / "runs", overrides=overrides)
    assert store.context.plan.models[0].weights == str((folder / "classifier").resolve())
    (together,) = {chunk.methods for chunk in store.chunks}
    assert "gradtoken" in together
    found = dry_run_plan("gradtoken_fig6", folder / "runs", 1, overrides=overrides)
    assert found.estimate.images == 2
    assert found.estimate.forwards > 2 * 11 * 8, "eleven texts are read for the scores of each method"
    unknown = dry_run_plan("gradtoken_fig6", folder / "runs", 1, overrides=PlanOverrides(home=None))
    assert unknown.estimate.images == 199
    with pytest.raises(PlanError, match=r"give --weights classifier=FOLDER"):
        open_run("gradtoken_fig6", folder / "runs", overrides=PlanOverrides({"movies": str(folder / "movies")}))
    assert any("weights of classifier are not on this machine" in note for note in unknown.notes)


def test_images_and_texts_are_not_mixed(folder, tmp_path):
    mixed = PLAN.replace('dataset = { name = "movies", root = "movies" }', "").replace(
        'weights = "classifier"', f'weights = "{folder}/classifier"'
    )
    mixed += f'keep_maps = true\n[[dataset]]\nname = "movies"\nroot = "{folder}/movies"\n'
    mixed = mixed.replace('["rationale", "eraser"]', '["rationale", "segmentation", "chefer21"]')
    with pytest.raises(PlanError) as caught:
        open_store(mixed + '[[dataset]]\nname = "scenes"\nlimit = 1\n', tmp_path, tmp_path)
    message = str(caught.value)
    assert "a plan has either images or texts: split it in two" in message
    assert "segmentation scores images, and movies has texts: choose from rationale, eraser" in message
    assert "chefer21 scores images, and movies has texts" in message
    assert "rationale scores texts, and scenes has images: remove it" in message
    assert "keep_maps saves maps of images" in message
    assert {"gradtoken_fig6"} <= set(plans())


def test_unreadable_and_failing_texts_are_rows(folder, tmp_path, monkeypatch):
    from vitrail.bench import text_chunk

    real = text_chunk.explain

    def failing(model, texts, **rest):
        if any(text == REVIEWS[1][0] for text in texts):
            raise RuntimeError("too long")
        return real(model, texts, **rest)

    monkeypatch.setattr(text_chunk, "explain", failing)
    read = Movies._read

    def unreadable(dataset, index):
        if index == 2:
            raise DataError("the review is damaged")
        return read(dataset, index)

    monkeypatch.setattr(Movies, "_read", unreadable)
    text = PLAN.replace("integrated_gradients:steps=2", "random").replace("chunk = 2", "chunk = 3")
    (tmp_path / "plan.toml").write_text(text)
    overrides = PlanOverrides({"movies": str(folder / "movies")}, {"classifier": str(folder / "classifier")})
    store = open_run(tmp_path / "plan.toml", tmp_path / "runs", overrides=overrides)
    LocalEngine(1).run(store.missing())
    table = store.merge()
    errors = {row["image"]: row["error"] for row in table.to_dicts() if row["image"]}
    assert errors == {"review_0.txt": None, "review_1.txt": "RuntimeError: too long",
                      "review_2.txt": "the review is damaged"}  # fmt: skip
    assert torch.is_grad_enabled()
