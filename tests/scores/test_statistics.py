"""Bootstrap intervals, permutation tests and Holm's correction against loops and known examples."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from tests.scores.score_helpers import image_ids, ten_maps, ten_masks
from vitrail.errors import InputError
from vitrail.scores.comparison import compare
from vitrail.scores.segmentation import (
    SegmentationScores,
    score_segmentation,
)
from vitrail.scores.statistics import difference, holm, interval, mean_ratio, p_value


def test_holm_on_known_examples():
    assert holm([0.01, 0.04, 0.03, 0.005]).tolist() == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.6]).tolist() == [1.0, 1.0]
    assert holm([0.02]).tolist() == [0.02]
    assert holm([]).tolist() == []


def test_bootstrap_interval_equals_a_loop():
    values = np.random.default_rng(0).gamma(2.0, size=200)
    rng = np.random.default_rng(1)
    slow = [rng.choice(values, 200).mean() for _ in range(4000)]
    found = interval(values, resamples=4000)
    assert found.value == pytest.approx(values.mean())
    assert (found.low, found.high) == pytest.approx(np.quantile(slow, [0.025, 0.975]), abs=0.02)
    assert interval(values) == interval(values)
    assert interval(values, seed=1) != interval(values)
    wide = interval(values, level=0.99)
    assert wide.low < found.low < found.high < wide.high


def test_intervals_have_the_nominal_coverage():
    rng = np.random.default_rng(0)
    inside = 0
    for i in range(300):
        _, low, high = interval(rng.normal(1.0, 2.0, 80), resamples=400, seed=i)
        inside += low <= 1.0 <= high
    assert 0.91 <= inside / 300 <= 0.98


def test_interval_of_ratios_of_sums():
    rng = np.random.default_rng(0)
    under = rng.integers(5, 50, (60, 2)).astype(float)
    over = np.floor(under * rng.random((60, 2)))
    table = np.concatenate([over, under], 1)
    found = interval(table, mean_ratio, resamples=3000)
    assert found.value == pytest.approx((over.sum(0) / under.sum(0)).mean())
    slow = []
    for _ in range(3000):
        i = rng.integers(0, 60, 60)
        slow.append((over[i].sum(0) / under[i].sum(0)).mean())
    assert (found.low, found.high) == pytest.approx(np.quantile(slow, [0.025, 0.975]), abs=0.01)
    scores = SegmentationScores()
    scores.add(image_ids(10), score_segmentation(ten_maps(), ten_masks()))
    assert interval(scores.ratios(), mean_ratio).value == pytest.approx(scores.summary()["miou"])
    assert interval(scores.ratios(0.4), mean_ratio).value == pytest.approx(scores.regions().miou()[5])


def test_p_values_equal_the_exact_permutation_test():
    a, b = np.array([1.0, 2.0, 4.0, 0.5, 3.0, 2.5]), np.array([0.5, 2.5, 3.0, 0.0, 1.0, 2.0])
    d = a - b
    swaps = [abs((np.array(s) * d).mean()) >= abs(d.mean()) - 1e-12 for s in itertools.product([1, -1], repeat=6)]
    assert p_value(a, b, resamples=20000) == pytest.approx(np.mean(swaps), abs=0.01)
    assert p_value(a, b) == p_value(b, a)
    assert p_value(a, a) == 1.0
    assert p_value(np.arange(50.0) + 1, np.arange(50.0), resamples=999) == 0.001
    ratio = np.stack([a, a + b], 1)
    other = np.stack([b, a + b], 1)
    assert p_value(ratio, other, mean_ratio, resamples=5000) == pytest.approx(np.mean(swaps), abs=0.03)
    with pytest.raises(InputError, match="same images"):
        p_value(a, b[:5])
    with pytest.raises(InputError, match="NaN"):
        p_value(a, np.where(a > 3, np.nan, b))


def test_p_values_are_uniform_under_the_null():
    rng = np.random.default_rng(0)
    p = [p_value(rng.normal(size=40), rng.normal(size=40), resamples=199, seed=i) for i in range(300)]
    assert np.mean(np.array(p) <= 0.05) < 0.09
    assert 0.42 < np.mean(p) < 0.58


def test_compare():
    rng = np.random.default_rng(0)
    base = rng.random(200)
    noise = rng.normal(size=200)
    values = {"worse": base - 0.1 + 0.02 * noise, "good": base, "twin": base + 0.01 * noise[::-1]}
    values["worse"][7] = np.nan  # excluded for all methods
    rows = compare(values, resamples=1000)
    assert {rows[0].name, rows[1].name} == {"good", "twin"}
    assert rows[2].name == "worse"
    known = np.arange(200) != 7
    by = {r.name: r for r in rows}
    best = rows[0].name
    for name, row in by.items():
        assert row.mean == pytest.approx(values[name][known].mean())
        assert row.low < row.mean < row.high
        own = difference(values[name][known], values[best][known], resamples=1000)
        assert (row.difference, row.difference_low, row.difference_high) == pytest.approx(tuple(own))
    assert math.isnan(rows[0].p)
    assert rows[0].difference == rows[0].difference_low == 0
    assert by["worse"].p_holm == pytest.approx(2 * by["worse"].p)
    assert by["worse"].p == pytest.approx(1 / 1001)
    assert rows[1].p > 0.05
    # The paired difference has a far narrower interval than either mean.
    assert by["worse"].difference_high - by["worse"].difference_low < 0.2 * (by["worse"].high - by["worse"].low)
    assert compare(values, higher=False, resamples=100)[0].name == "worse"
    with pytest.raises(InputError, match="same images"):
        compare({"a": [1.0, 2.0], "b": [1.0]})
