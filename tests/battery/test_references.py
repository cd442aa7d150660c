"""Agreement with LXT 2.1, Captum and inseq on small decoders, by stored values.

`studies/decoder_references.py` and `studies/inseq_references.py` write them.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from studies import inseq_references
from studies.decoder_references import FAMILIES, IDS, contrast, reference_model

import vitrail
from tests.text.language import word_tokens
from vitrail.targets import token

pytest.importorskip("transformers")
DATA = Path(__file__).parent / "data"
#: Rotary angles are in single precision also in a model of double precision, and processors round them differently.
ROTARY_TOLERANCE = 5e-6
STORED, INSEQ = (
    json.loads((DATA / f"{name}_references.json").read_text(encoding="utf-8"))["values"]
    for name in ("decoder", "inseq")
)


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
    tolerance = 1e-6 if family == "GPT2" else ROTARY_TOLERANCE
    assert float((found - expected).abs().max() / expected.abs().max()) < tolerance


@pytest.mark.parametrize("family", inseq_references.FAMILIES)
def test_gradients_are_those_of_inseq(family):
    model, tokenizer = reference_model(family), word_tokens(bos=False)
    unknown = model.get_input_embeddings().weight[tokenizer.unk_token_id].detach()  # inseq's baseline
    methods = {"gradient_x_input": {}, "integrated_gradients": {"steps": 64, "baseline": unknown.expand(1, 5, -1)}}
    target = token(inseq_references.NEXT, score="logit")
    found = vitrail.explain(model, inseq_references.PROMPT, methods=methods, tokenizer=tokenizer, target=target)
    for e, name in zip(found.values(), inseq_references.METHODS, strict=True):
        expected = torch.tensor(INSEQ[family][name])
        assert float((e.grid[0, 0] - expected).abs().max() / expected.abs().max()) < 1e-5, name
