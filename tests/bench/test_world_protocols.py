"""Protocols of the worlds against maps whose scores are known."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from vitrail.bench.protocols import PROTOCOLS
from vitrail.bench.world_batch import WorldBatch
from vitrail.bench.world_protocols import ExplainedPairs
from vitrail.bench.world_tasks import WORLD_TASKS, maps_of_pairs
from vitrail.models import load


def batch_of(masks, maps, texts=None, counted=None, sentences=None):
    count = len(masks)
    right = torch.ones(count, 2, dtype=torch.bool)
    pairs = WorldBatch(
        torch.zeros(count), [[0, 1]] * count, masks, right, texts=texts, counted=counted, sentences=sentences
    )
    return ExplainedPairs(tuple(map(str, range(count))), pairs, {"method": maps})


def scores_of(name, batch):
    (scores,) = PROTOCOLS[name](batch, ("predicted",))
    return scores


def test_discrimination_of_right_wrong_and_equal_maps():
    masks = torch.zeros(3, 2, 4, 6, dtype=torch.bool)
    masks[:, 0, 0, :2], masks[:, 1, 3, 4:] = True, True
    maps = torch.rand(3, 2, 4, 6, generator=torch.Generator().manual_seed(0)) * 0.1
    maps[0] += masks[0]
    maps[1] += masks[1].flip(0)
    maps[2] = maps[2, :1]
    scores = scores_of("discrimination", batch_of(masks, maps)).values
    assert scores["share"].tolist() == [1, 0, 0.5]
    assert scores["hit"][:2].tolist() == [1, 0]
    assert scores["mass"][0] > 0.5 > scores["mass"][1]


def test_discrimination_joins_frames():
    masks = torch.zeros(1, 2, 3, 4, 4, dtype=torch.bool)
    masks[0, 0, 1, 0, 0], masks[0, 1, 1, 3, 3] = True, True
    assert scores_of("discrimination", batch_of(masks, masks.float())).values["mass"].tolist() == [1]


def test_top_word_ignores_what_is_behind_the_end_and_shares_ties():
    named = torch.tensor([[[False, True, False], [False, True, False]]])
    maps = torch.tensor([[[1.0, 2.0, 9.0], [1.0, 1.0, 0.0]]])
    scores = scores_of("top_word", batch_of(named, maps, [["a star", "a kite"]])).values
    assert scores["top"].tolist() == [0.75]
    assert scores["word_mass"].item() == pytest.approx((2 / 3 + 1 / 2) / 2)


def test_source_is_the_top_word_and_in_the_top_sentence():
    sources = torch.tensor([[[False, True, False, False, False]] * 2])
    sentences = torch.tensor([[[-1, 0, 1, 1, -1]] * 2])
    candidates = torch.tensor([[[False, True, True, True, True]] * 2])
    # The source leads both times; the two words of the other sentence exceed it together in the second map. The
    # question, which is no sentence of facts, may have more than any of them.
    maps = torch.tensor([[[9.0, 3.0, 1.0, 1.0, 0.0], [9.0, 3.0, 2.0, 2.0, 0.0]]])
    scores = scores_of("source", batch_of(sources, maps, counted=candidates, sentences=sentences)).values
    assert (scores["source"].tolist(), scores["sentence"].tolist()) == ([1], [0.5])
    assert scores["source_mass"].item() == pytest.approx((3 / 5 + 3 / 7) / 2)
    question = maps + torch.tensor([0, 0, 0, 0, 8.0])
    scores = scores_of("source", batch_of(sources, question, counted=candidates, sentences=sentences)).values
    assert (scores["source"].tolist(), scores["sentence"].tolist()) == ([0], [0.5])
    reasons = scores_of("source", batch_of(sources, maps, counted=candidates)).reasons
    assert set(reasons.values()) == {"the example has no sentences"}


def test_continuation_needs_a_text_that_goes_on():
    masks = torch.ones(1, 2, 3, dtype=torch.bool)
    reasons = scores_of("continuation", batch_of(masks, masks.float())).reasons
    assert set(reasons.values()) == {"the example has no text that goes on"}


def test_continuation_of_the_source_and_of_other_words():
    module = load("lm-recall").module
    pairs = WORLD_TASKS["lookup"](module, "test", range(6))
    right, wrong = pairs.masks.float(), (~pairs.masks & (pairs.sentences >= 0)).float()
    found = {
        name: scores_of("continuation", ExplainedPairs(tuple("abcdef"), pairs, {"method": maps}, module=module)).values
        for name, maps in (("right", right), ("wrong", wrong))
    }
    difference = found["right"]["comprehensiveness"] - found["wrong"]["comprehensiveness"]
    assert (difference > 0).all()
    assert difference.mean() > 2
    assert found["right"]["sufficiency"].shape == (6,)


def test_event_compares_frames_before_and_during():
    masks = torch.zeros(2, 2, 4, 2, 2, dtype=torch.bool)
    masks[0, :, 2:, 0, 0] = True
    masks[1, :, :, 0, 0] = True
    maps = torch.zeros(2, 2, 4, 2, 2)
    maps[:, 0, 3], maps[:, 1, 0] = 1, 1
    scores = scores_of("event", batch_of(masks, maps))
    assert scores.values["less_before"][0] == 0.5
    assert list(scores.reasons) == [1]


def test_scores_of_tokens_are_placed_on_the_grid():
    batch = batch_of(torch.zeros(1, 2, 4, 8, 8, dtype=torch.bool), torch.zeros(1)).pairs
    tokens = torch.zeros(1, 2, 1 + 2 * 2 * 2)
    tokens[0, 0, 1], tokens[0, 1, -1] = 1, 1
    maps = maps_of_pairs(tokens, batch, (2, 2, 2))
    assert maps.shape == (1, 2, 4, 8, 8)
    assert maps[0, 0].argmax() == 0
    assert maps[0, 1].flatten().flip(0).argmax() == 0


def test_rows_with_both_targets_are_paired():
    pairs = batch_of(torch.zeros(2, 2, 1, 1, dtype=torch.bool), torch.zeros(1)).pairs
    repeated = replace(pairs, repeated=True)
    values = torch.tensor([10.0, 20.0, 11.0, 21.0]).view(4, 1, 1, 1)
    assert maps_of_pairs(values, repeated, None).flatten(1).tolist() == [[10, 11], [20, 21]]


def test_the_object_with_most_relevance_is_compared_with_those_that_decide():
    objects = torch.zeros(1, 4, 2, 4, dtype=torch.bool)
    for k in range(3):  # the fourth is absent
        objects[0, k, :, k] = True
    decides = torch.zeros(1, 2, 4, dtype=torch.bool)
    decides[0, 0, 1] = decides[0, 1, 2] = True
    maps = torch.zeros(1, 2, 2, 4)
    maps[0, 0, :, 1] = torch.tensor([1.0, 0.5])
    maps[0, 0, 0, 3] = 2.0  # the maximum lies on nothing
    maps[0, 1, :, 0] = 1.0
    batch = batch_of(objects[:, :2], maps)
    batch.pairs = replace(batch.pairs, objects=objects, decides=decides)
    scores = scores_of("right_object", batch).values
    assert scores["first"].item() == 0.5
    assert scores["maximum"].item() == 0.0
    assert scores["chance"].item() == pytest.approx(1 / 3)
    assert scores_of("right_object", batch_of(objects[:, :2], maps)).reasons == {
        0: "the example has no list of objects"
    }
