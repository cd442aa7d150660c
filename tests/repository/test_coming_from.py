"""`docs/coming-from.md`: both halves of each comparison run, and results agree where the page says so.

Vitrail's half is also run by test_docs.py, without the other libraries.
"""

from __future__ import annotations

import re
import warnings
from importlib.metadata import version

import numpy as np
import pytest
import torch

from tests.repository.test_docs import ROOT

PAGE = (ROOT / "docs" / "coming-from.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"^```(python|py)\n(.*?)^```", re.DOTALL | re.MULTILINE)
PEERS = {
    "pytorch-grad-cam": "pytorch_grad_cam",
    "LeGrad": "legrad",
    "Captum": "captum",
    "transformers-interpret": "transformers_interpret",
}
#: Largest difference between the two halves of a section, as a share of the highest value.
AGREE = {"Grad-CAM": 1e-5, "Another block": 1e-5, "Integrated gradients": 1e-5, "Gradient × input": 1e-5,
         "Occlusion": 1e-4, "Keep the calls": 1e-5, "A prompt": 1e-5, "A region": 1e-5, "CLIP": 1e-5}  # fmt: skip
#: Sections whose halves correlate but differ, as the page says.
ALIKE = {"Smoothing": 0.9, "Word scores": 0.5}
#: Sections whose maps differ, and where ours has more of its relevance on the object.
ON_OBJECT = ("Boxes",)


def sections(text, marks):
    """(title, text) of each section at a level of headings."""
    parts = re.split(rf"^{marks} (.*)$", text, flags=re.MULTILINE)
    return list(zip(parts[1::2], parts[2::2], strict=True))


def code(text, *kinds):
    return "\n".join(body for kind, body in BLOCK.findall(text) if not kinds or kind in kinds)


@pytest.mark.slow
@pytest.mark.parametrize("peer", PEERS)
def test_both_halves_agree(peer):
    pytest.importorskip(PEERS[peer], reason=f"{peer} is not installed")
    if peer == "LeGrad" and version("open_clip_torch") > "2.23.0":
        pytest.skip("legrad_torch needs open_clip 2.23 or older")
    chapters = dict(sections(PAGE, "##"))
    names = {}
    intro = chapters[peer].partition("\n### ")[0]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exec(code(PAGE.partition("\n## ")[0] + intro), names)  # noqa: S102
        for title, text in sections(chapters[peer], "###"):
            # Vitrail's half first: it makes the model, and the other library may change it.
            exec(code(text, "python"), names)  # noqa: S102
            ours_first = torch.as_tensor(names.get("ours", 0)).clone()
            exec(code(text, "py"), names)  # noqa: S102
            if title in ON_OBJECT:
                found = [np.asarray(ours_first), np.asarray(names["theirs"])]
                share = [one[0][names["mask"]].sum() / one.sum() for one in found]
                assert share[0] > 2 * share[1], title
            if title in AGREE or title in ALIKE:
                ours = ours_first.double().flatten()
                theirs = torch.as_tensor(names["theirs"]).detach().double().flatten()
                if title in AGREE:
                    assert (ours - theirs).abs().max() <= AGREE[title] * theirs.abs().max(), title
                else:
                    assert torch.corrcoef(torch.stack([ours, theirs]))[0, 1] > ALIKE[title], title


def test_every_comparison_is_tested():
    chapters = dict(sections(PAGE, "##"))
    compared = [found for peer in PEERS for found in sections(chapters[peer], "###")]
    assert {title for title, text in compared if "```py\n" in text} == AGREE.keys() | ALIKE.keys() | set(ON_OBJECT)
