"""Needle prompts: the passages of both candidates, one fact for each key, and different first digits of codes."""

from __future__ import annotations

import pytest

from vitrail.data.needles import NEEDLE_TEMPLATES, draw_needle
from vitrail.errors import InputError


@pytest.mark.parametrize("template", NEEDLE_TEMPLATES)
def test_passages_hold_the_candidates(template):
    kind, counts, endings = NEEDLE_TEMPLATES[template], set(), set()
    for index in range(40):
        prompt = draw_needle(1, index, template=template)
        assert prompt.text[slice(*prompt.source)] == prompt.answer != prompt.other
        assert prompt.text[slice(*prompt.other_source)] == prompt.other
        sentences = [prompt.text[slice(*span)] for span in prompt.sentences]
        ending = prompt.text[prompt.sentences[-1][1] + 1 :]
        starts = {key: kind.start.format(key) for key in kind.keys}
        asked = next(key for key, start in starts.items() if ending.lower().endswith(start.lower()))
        assert f"{starts[asked]} {prompt.answer}." in sentences
        assert sum(asked in sentence.split() for sentence in sentences) == 1
        assert prompt.answer not in ending
        assert ending.startswith(
            (starts[asked], "As I said, ", f"Question: {kind.question.format(asked)} Answer: ")[prompt.ending]
        )
        counts.add(len(sentences))
        endings.add(prompt.ending)
    assert (counts, endings) == ({2, 3, 4, 5, 6}, {0, 1, 2})


def test_codes_differ_in_their_first_digit():
    for index in range(20):
        prompt = draw_needle(0, index, template="code")
        digits = [prompt.text[slice(*span)].split()[-1][0] for span in prompt.sentences]
        assert len(set(digits)) == len(digits)


def test_templates_take_turns_and_unknown_ones_are_errors():
    assert [draw_needle(0, i).template for i in range(len(NEEDLE_TEMPLATES))] == list(NEEDLE_TEMPLATES)
    assert draw_needle(0, 7) == draw_needle(0, 7) != draw_needle(0, 12)
    with pytest.raises(InputError, match="unknown template 'song': use one of thing"):
        draw_needle(0, 0, template="song")
