"""A benchmark of pairs from the plan to the table, and what plans refuse."""

from __future__ import annotations

import pytest
import torch

from vitrail.bench import PlanError, PlanOverrides, read_plan, read_results, run_plan
from vitrail.bench.world_removal import CellRemoval
from vitrail.bench.world_tasks import WORLD_TASKS
from vitrail.data.recall import RECALL_TASKS, draw_recall, recall_tokenizer
from vitrail.models import load

pl = pytest.importorskip("polars")

PLAN = """
name = "segments"
models = ["scenes-seg"]
methods = ["transformer_mm"]
protocols = ["discrimination"]
dataset = { name = "worlds", options = { task = "regions", count = 2 } }
"""


def write(tmp_path, text):
    path = tmp_path / "plan.toml"
    path.write_text(text)
    return path


def test_a_plan_gives_scores_of_methods_and_controls(tmp_path):
    path = write(tmp_path, PLAN)
    store = run_plan(path, tmp_path / "runs", overrides=PlanOverrides(home=None))
    table = read_results(store.folder).filter(pl.col("score") == "share")
    means = dict(table.group_by("method").agg(pl.col("value").mean()).iter_rows())
    assert set(means) == {"transformer_mm", "random", "centre", "edges"}
    assert means["transformer_mm"] == 1
    assert means["centre"] == means["edges"] == 0.5, "a map without a target is right for one of two"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"discrimination"', '"segmentation"', "segmentation scores images or texts"),
        ('task = "regions"', 'task = "shapes"', "unknown task 'shapes'"),
        ('name = "worlds", options = { task = "regions", count = 2 }', 'name = "scenes", limit = 1',
         "discrimination scores pairs of the worlds"),
    ],
)  # fmt: skip
def test_plans_name_what_does_not_fit(tmp_path, old, new, message):
    text = PLAN.replace(old, new)
    with pytest.raises(PlanError, match=message):
        read_plan(write(tmp_path, text), overrides=PlanOverrides(home=None))


@pytest.mark.parametrize(
    ("task", "model"),
    [
        ("captions", "scenes-clip"), ("boxes", "scenes-detr"), ("movements", "scenes-video"), ("tones", "tones"),
        ("lookup", "lm-recall"), ("sum_contrast", "lm-recall"),
    ],
)  # fmt: skip
def test_targets_are_the_scores_of_the_two_things(task, model):
    """The model is right for most of the examples, and every target has a value and a place."""
    loaded = load(model)
    batch = WORLD_TASKS[task](loaded.module, "val", range(6))
    assert batch.correct.float().mean() > 0.8
    if not batch.repeated:
        assert CellRemoval(loaded, batch, "cpu").whole.shape == (6, 2)
    assert batch.masks.flatten(2).any(-1).all()


def test_prompts_differ_whatever_the_distance_of_the_examples():
    """A limit takes every n-th example, and their prompts must not all have one form."""
    module = load("scenes-clip").module
    for step in (1, 2, 4):
        texts = WORLD_TASKS["words"](module, "val", range(0, 16 * step, step)).texts
        assert len({text.split()[0] for pair in texts for text in pair}) == 2


@pytest.mark.slow
def test_every_example_has_noise_of_its_own(tmp_path):
    text = PLAN.replace("discrimination", "top_word").replace("scenes-seg", "scenes-clip")
    path = write(tmp_path, text.replace('"regions", count = 2', '"words", count = 6'))
    store = run_plan(path, tmp_path / "runs", overrides=PlanOverrides(home=None))
    table = read_results(store.folder).filter(pl.col("method") == "random", pl.col("score") == "word_mass")
    assert len(set(table["value"].to_list())) == 6


@pytest.mark.parametrize("task", RECALL_TASKS)
def test_texts_are_padded_and_their_sources_are_marked(task):
    module, count = load("lm-recall").module, 6
    batch = WORLD_TASKS[task](module, "test", range(count))
    against = WORLD_TASKS[f"{task}_contrast"](module, "test", range(count))
    ids = torch.stack(batch.inputs["input_ids"].chunk(2), 1)
    tokenizer = recall_tokenizer()
    for row in range(count):
        for side, prompt in enumerate(draw_recall(0, row, task=task, split="test")):
            marked = tokenizer.convert_ids_to_tokens(ids[row, side][batch.masks[row, side]])
            assert marked == [prompt.words[place] for place in prompt.source]
            assert tokenizer.decode(ids[row, side], skip_special_tokens=True) == prompt.text
    with torch.no_grad():
        output = module(**batch.inputs)
    answers, differences = batch.targets(output), against.targets(output)
    scores = output["logits"][:, -1]
    best, second = scores.topk(2).values.T
    odds = scores.double().softmax(-1).amax(-1).logit()
    assert torch.allclose(answers.double(), odds, rtol=1e-4), "log-odds; the model answers all of these"
    assert bool((differences >= best - second).all())
