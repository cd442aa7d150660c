"""Grad-SAM for all queries and for those of the readout."""

from __future__ import annotations

import torch

import vitrail
from vitrail.testing import tiny_vit


def test_the_readout_of_one_block_is_transformer_mm():
    """Only the class token's row has a gradient in the last block, and no block lies below it."""
    torch.manual_seed(0)
    images = torch.randn(2, 3, 32, 32)
    found = vitrail.explain(
        tiny_vit(depth=1), images, methods=["gradsam", "gradsam:readout", "transformer_mm"], target=1
    )
    torch.testing.assert_close(found["gradsam:readout"].grid, found["transformer_mm"].grid, rtol=1e-4, atol=1e-9)
    torch.testing.assert_close(found["gradsam"].grid * 17, found["gradsam:readout"].grid, rtol=1e-4, atol=1e-9)


def test_the_readout_leaves_out_what_other_queries_gather():
    torch.manual_seed(0)
    found = vitrail.explain(
        tiny_vit(depth=2), torch.randn(1, 3, 32, 32), methods=["gradsam", "gradsam:readout"], target=1
    )
    assert (found["gradsam"].grid * 34 - found["gradsam:readout"].grid * 2).max() > 0
    assert (found["gradsam"].grid * 34 >= found["gradsam:readout"].grid * 2 - 1e-9).all(), "a part of the sum"
