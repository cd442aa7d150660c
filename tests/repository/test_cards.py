"""Cards of the methods: generated from committed results, rated by one set of rules, printed and documented."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from results.method_pages import recommendations, renewed_index, renewed_page, replaced
from rich.console import Console
from typer.testing import CliRunner

from vitrail.cli.app import app
from vitrail.errors import OptionError
from vitrail.methods import METHODS
from vitrail.methods.card import (
    FAIL,
    MIXED,
    MODELS,
    PASS,
    PHOTOGRAPH_MODELS,
    RATINGS,
    RULES,
    UNRATED,
    CardMeasurement,
    combined,
    measurements,
    method_card,
)

ROOT = Path(__file__).resolve().parents[2]
RENEW = "run python results/cards.py"
RULE = {rule.key: rule for rule in RULES}


@pytest.fixture
def script(monkeypatch):
    """The script that collects the cards; it is not part of the package."""
    monkeypatch.syspath_prepend(str(ROOT / "results"))
    monkeypatch.delitem(__import__("sys").modules, "cards", raising=False)
    import cards

    yield cards
    __import__("sys").modules.pop("cards", None)


def test_stored_cards_are_those_of_the_committed_results(script):
    assert script.stored_text(script.collect()) == script.STORED.read_text(encoding="utf-8"), RENEW


@pytest.mark.parametrize("name", METHODS)
def test_page_has_the_card(name):
    page = (ROOT / "docs" / "methods" / f"{name}.md").read_text(encoding="utf-8")
    assert page == renewed_page(page, name), RENEW


def test_list_of_methods_has_all_cards():
    page = (ROOT / "docs" / "methods" / "index.md").read_text(encoding="utf-8")
    assert page == renewed_index(page), RENEW
    assert page == renewed_index(page.replace("<!-- applicability -->", "<!-- applicability -->\n| old | table |"))
    table = page.partition("<!-- cards -->")[2].partition("<!-- /cards -->")[0]
    assert sorted(re.findall(r"^\| \[`(\w+)`\]", table, re.MULTILINE)) == sorted(METHODS)


#: Explainers that were trained for photograph models on few images are no use (see its page): its card is of scenes.
TRAINED = "vit_shapley"


@pytest.mark.parametrize("name", [name for name in METHODS if name != TRAINED])
def test_every_method_was_measured_on_three_models(name):
    found = measurements()[name]
    for key in ("determinism", "noise", "label", "all", "srg", "cost"):
        assert set(PHOTOGRAPH_MODELS) <= found[key].keys(), key
    assert "scenes" in found["pairs"]


def test_controls_fail_where_they_must():
    """A control reads nothing of the model, so its map stays when all parameters are random, whatever the class."""
    for name in ("random", "centre", "edges"):
        card = method_card(name)
        assert card.lines["all"].rating == FAIL
        assert card.lines["pairs"].rating == FAIL
        assert card.lines["srg"].rating == UNRATED
    assert method_card("random").lines["determinism"].rating == FAIL
    assert method_card("centre").lines["determinism"].rating == PASS


def test_class_agnostic_methods_fail_by_label():
    for name, method in METHODS.items():
        if not method.class_specific:
            assert method_card(name).rating("label") == FAIL
            assert method_card(name).lines["label"].rating == FAIL


@pytest.mark.parametrize(
    ("key", "value", "rating"),
    [
        ("determinism", 0.95, PASS), ("determinism", 0.94, FAIL), ("options", 0.5, PASS), ("options", 0.49, FAIL),
        ("completeness", 0.01, PASS), ("completeness", 0.05, MIXED), ("completeness", 0.2, FAIL),
        ("noise", 0.5, PASS), ("noise", 0.4, FAIL), ("label", 0.95, PASS), ("label", 0.96, FAIL),
        ("head", 0.96, FAIL), ("last block", 0.9, PASS), ("all", 0.5, PASS), ("all", 0.51, FAIL),
        ("cost", 5.0, PASS), ("cost", 50.0, MIXED), ("cost", 101.0, FAIL),
    ],
)  # fmt: skip
def test_rules(key, value, rating):
    assert RULE[key].rate(CardMeasurement(value, 1)) == rating


def test_rules_that_compare():
    assert RULE["srg"].rate(CardMeasurement(0.4, 10, "better")) == PASS
    assert RULE["srg"].rate(CardMeasurement(0.4, 10)) == FAIL
    assert RULE["pairs"].rate(CardMeasurement(85.0, 10, low=80.0)) == PASS
    assert RULE["pairs"].rate(CardMeasurement(70.0, 10, low=60.0)) == MIXED
    assert RULE["pairs"].rate(CardMeasurement(55.0, 10, low=48.0)) == FAIL


def test_models_that_disagree_are_mixed():
    assert combined([PASS, PASS, FAIL]) == MIXED
    assert combined([FAIL, FAIL]) == FAIL
    assert combined([]) == UNRATED


def test_worst_line_rates_an_attribute():
    card = method_card("centre")
    assert {line.rating for line in card.lines.values() if line.section == "model"} >= {FAIL}
    assert card.rating("model") == FAIL
    assert card.rating("no such attribute") == UNRATED
    json.dumps(card.to_dict())


def test_unknown_method_is_refused():
    with pytest.raises(OptionError, match="unknown method"):
        method_card("gradtokn")


def test_comparison_with_the_strongest_control(script):
    rng = np.random.default_rng(0)
    low, high = rng.normal(0.1, 0.02, 30).tolist(), rng.normal(0.3, 0.02, 30).tolist()
    rows = {name: {"perturbation": {"srg(tokens)": low}} for name in ("random", "edges", "same")}
    rows |= {"centre": {"perturbation": {"srg(tokens)": [v + 0.05 for v in low]}}}
    rows |= {"good": {"perturbation": {"srg(tokens)": high}}, "few": {"perturbation": {"srg(tokens)": high[:2]}}}
    found = script.compared_lines(rows, "srg", ["good", "same", "few", "centre", "none"])
    assert found["good"]["detail"] == "better"
    assert found["same"]["detail"] == "worse"  # than the strongest control
    assert "detail" not in found["few"], "two images show nothing"
    assert "detail" not in found["centre"], "a control is not compared with itself"
    assert "none" not in found
    assert found["good"]["value"] == pytest.approx(np.mean(high), abs=1e-5)


def test_rough_variants_do_not_count_as_options(script):
    row = {"images": 4, "options": {"quick": {"rho": 0.1, "maps": 4}, "preview": {"rho": 0.8, "maps": 4},
                                    "flat": {"rho": None, "maps": 0}}}  # fmt: skip
    assert script.model_lines(row)["options"] == {"value": 0.8, "images": 4, "detail": "preview"}


def test_recommended_methods_fit_their_situation():
    rows = [line.split(" | ") for line in recommendations().splitlines()[2:]]
    used = {row[0].strip("| "): re.findall(r"`(\w+)`", row[1]) for row in rows}
    assert all(used.values())
    for name in used["a fast first look"]:
        assert {method_card(name).lines[key].rating for key in ("cost", "srg", "noise")} == {PASS}
    assert all(METHODS[name].reason_against("Swin") is None for name in used["Swin and pyramids"])
    assert all(METHODS[name].reason_against("text") is None for name in used["texts"])


def test_marked_parts_of_a_page_are_replaced():
    assert replaced("a <!-- x --> old <!-- /x --> b", "x", "new") == "a <!-- x -->\n\nnew\n\n<!-- /x --> b"
    with pytest.raises(ValueError, match="<!-- card -->"):
        replaced("no marks", "card", "")


def test_command_prints_the_card_in_words(monkeypatch):
    done = CliRunner().invoke(app, ["methods", "leadlight"])
    assert done.exit_code == 0
    assert "\x1b" not in done.output, "plain when piped"
    for title in MODELS.values():
        assert title in done.output
    card = method_card("leadlight")
    for line in card.lines.values():
        assert line.section in done.output
        row = next(row for row in done.output.splitlines() if line.title in row or line.section == "needs")
        assert line.rating in row or line.section == "needs"
    import vitrail.cli.methods as command

    coloured = Console(force_terminal=True, color_system="standard", width=100, record=True)
    monkeypatch.setattr(command, "out", coloured)
    command.methods("leadlight")
    html = coloured.export_html()
    assert any(word in html for word in RATINGS)
    assert "color: #008000" in html, "pass is green"


def test_benchmark_tries_known_options(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "studies"))
    import card_measurements

    specs = {name: list(card_measurements.option_specs(name)) for name in METHODS}
    assert "3" in specs["gradtoken"]
    assert "4" not in specs["gradtoken"], "the default"
    assert set(card_measurements.VALUES) <= METHODS.keys()
