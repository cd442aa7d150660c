"""The table of models, targets and methods is that of the zoo's entries."""

from __future__ import annotations

from tests.zoo.entry import Entry
from tests.zoo.known_answers import TESTS
from tests.zoo.model_table import PAGE, renewed, table


def test_page_has_the_table_of_the_tests():
    page = PAGE.read_text(encoding="utf-8")
    assert page == renewed(page), "run python -m tests.zoo.model_table"


def test_only_methods_with_a_test_that_passes_are_called_right():
    assert "permute_examples" in TESTS
    entry = Entry(
        "hf:Model", lambda: None, ("permute_examples",), ("rollout", "gradtoken", "legrad"), {"tam": "reason"},
        pending={"permute_examples:gradtoken": "fails"}, target="box",
    )  # fmt: skip
    assert table([entry]).splitlines()[-1] == "| box | hf:Model | `rollout`, `legrad` | `tam` |"
    pending = Entry(
        "hf:Other", lambda: None, ("permute_examples",), ("rollout",), pending={"permute_examples": "fails"}
    )
    assert len(table([pending]).splitlines()) == 2
