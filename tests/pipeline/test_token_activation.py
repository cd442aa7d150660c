"""Token activation maps: a replica of the published formulas with loops, in double precision."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import vitrail
from tests.zoo.vision_language import CASES, LABEL, TOKENIZER
from vitrail.errors import NotApplicableError
from vitrail.pipeline.token_activation import rank_gaussian_filter
from vitrail.targets import answer, token

pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore")
IMAGE, WORDS = range(1, 17), range(18, 24)


def filtered(image):
    padded, result = np.pad(image, 1, mode="reflect"), np.zeros_like(image)
    for i in range(image.shape[0]):
        for j in range(image.shape[1]):
            window = np.sort(padded[i : i + 3, j : j + 3].ravel())
            if window.mean() <= 0:
                continue
            width = window.std() / window.mean()
            weights = np.exp(-((np.arange(9) - 4) ** 2) / (2 * width**2)) if width else np.arange(9) == 4
            result[i, j] = (window * weights).sum() / weights.sum()
    return result


def replica(logits, ids, index):
    """The map of one token on the image, and its activation at the words."""
    positive = np.maximum(logits, 0)
    own = positive[:, index]
    interference, total = np.zeros(16), sum(own[i] for i in WORDS if ids[i] != index) + 1e-8
    for i in WORDS:
        if ids[i] != index:
            interference += own[i] / total * positive[list(IMAGE), ids[i]]
    image = own[list(IMAGE)]
    scale = np.linalg.lstsq(interference[:, None], image, rcond=None)[0][0]
    both = np.concatenate([np.maximum(image - scale * interference, 0), own[list(WORDS)]])
    both = (both - both.min()) / (both.max() - both.min())
    return both[:16].reshape(4, 4), both[16:]


@pytest.mark.parametrize("index", [LABEL, 11])
@pytest.mark.parametrize("rank_filter", [False, True])
def test_the_map_is_that_of_the_replica(index, rank_filter):
    case = CASES["llava"]()
    model = case.model.double()
    inputs = {name: v.double() if v.is_floating_point() else v for name, v in case.inputs.items()}
    inputs["input_ids"][0, 20] = index  # a word that is the token itself is no context
    e = vitrail.token_activation(model, inputs, processor=TOKENIZER, target=token(f"w{index}"), filtered=rank_filter)
    with torch.no_grad():
        logits = model(**inputs).logits.numpy()
    for b in range(2):
        image, words = replica(logits[b], inputs["input_ids"][b].tolist(), index)
        expected = filtered(image) if rank_filter else image
        assert np.allclose(e.grid[b, 0].numpy(), expected, atol=1e-6)
        assert np.allclose(e.text[b].scores[0].numpy(), words, atol=1e-6)
    assert e.method == "token_activation"
    assert e.image.maps.shape[0] == 2


def test_the_rank_filter_removes_single_cells_and_keeps_regions():
    grid = torch.zeros(1, 6, 6, dtype=torch.float64)
    grid[0, 1, 1] = 1.0
    grid[0, 3:, 3:] = 1.0
    found = rank_gaussian_filter(grid)[0]
    assert float(found[1, 1]) < 0.3
    assert torch.allclose(found[4:, 4:], torch.ones(2, 2, dtype=torch.float64))
    assert np.allclose(found.numpy(), filtered(grid[0].numpy()))


def test_other_targets_are_refused():
    case = CASES["llava"]()
    with pytest.raises(NotApplicableError, match="explains tokens"):
        vitrail.token_activation(case.model, case.inputs, processor=TOKENIZER, target=answer("w7 w9"))
