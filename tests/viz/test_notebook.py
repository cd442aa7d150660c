"""What results look like in notebooks and figures: a diagnosis as tables, colour bars for signed and unsigned maps."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

import vitrail
from vitrail.testing import tiny_vit
from vitrail.tools.diagnose import Diagnosis


def test_diagnosis_displays_itself_and_escapes():
    diagnosis = Diagnosis(
        (("model", "Vi<T>"),), (("outputs", "0 & 1"),), (("rollout", True, "0.1 s"), ("tam", False, "no"))
    )
    page = diagnosis._repr_html_()
    assert "Vi&lt;T&gt;" in page
    assert "0 &amp; 1" in page
    assert page.count("<table") == 3
    assert page.count(">yes<") == page.count("no</span>") == 1


@pytest.mark.parametrize(("methods", "labels"), [
    (["rollout", "attcat"], [["min", "max"], ["against", "0", "for"]]),
    (["attcat"], [["against", "0", "for"]]),
    (["rollout", "raw_attention"], [["min", "max"]]),
])  # fmt: skip
def test_figures_have_a_colour_bar_for_each_kind_of_map(methods, labels):
    pytest.importorskip("matplotlib")
    figure = vitrail.explain(tiny_vit(), torch.randn(1, 3, 32, 32), methods=methods).figure()
    bars = [[t.get_text() for t in a.get_yticklabels()] for a in figure.axes[1 + len(methods) :]]
    assert bars == labels
    edges = [a.get_position() for a in figure.axes[1 + len(methods) :]]
    assert all(left.x1 < right.x0 for left, right in pairwise(edges))
    assert edges[-1].x1 < 1
