"""Agreement with LXT 2.1 and Captum on small decoders, by stored values (`studies/decoder_references.py`)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from studies.decoder_references import FAMILIES, IDS, contrast, reference_model

import vitrail

pytest.importorskip("transformers")
STORED = json.loads((Path(__file__).parent / "data" / "decoder_references.json").read_text(encoding="utf-8"))["values"]


@pytest.mark.parametrize("method", ["attnlrp", "gradient_x_input", "integrated_gradients:steps=32"])
@pytest.mark.parametrize("family", FAMILIES)
def test_relevance_is_that_of_the_reference(family, method):
    model, ids = reference_model(family).double(), torch.from_numpy(IDS)
    stored = STORED[family]
    with torch.no_grad():
        assert torch.allclose(
            contrast(model(ids).logits), torch.tensor(stored["logits"], dtype=torch.float64), atol=1e-6
        )
    target = lambda output: contrast(output.logits)  # noqa: E731
    found = vitrail.explain(model, {"input_ids": ids}, method, target=target).grid[:, 0].double()
    expected = torch.tensor(stored[method.partition(":")[0]], dtype=torch.float64)
    assert float((found - expected).abs().max() / expected.abs().max()) < 1e-6
