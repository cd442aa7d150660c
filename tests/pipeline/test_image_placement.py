"""Image tokens on the image: patches, tiles with an overview and padding, flattened patches."""

from __future__ import annotations

import pytest
import torch

from vitrail.errors import NotApplicableError
from vitrail.pipeline.image_placement import place_tokens


def owners_of(rows, columns, size, first=0):
    """Row by row, square patches."""
    cells = torch.arange(rows * columns).view(rows, columns) + first
    return cells.repeat_interleave(size, 0).repeat_interleave(size, 1)


def test_patches_are_cells():
    placed = place_tokens(torch.randn(1, 3, 16, 24), owners_of(2, 3, 8), {})
    grid = placed.grid(torch.arange(6.0)[None])
    assert grid.tolist() == [[[0, 1, 2], [3, 4, 5]]]
    assert placed.maps(grid).shape == (1, 16, 24)


def tiles_of(image, rows, columns):
    size = image.shape[1] // rows
    return [image[:, r * size : (r + 1) * size, c * size : (c + 1) * size] for r in range(rows) for c in range(columns)]


@pytest.mark.parametrize("last", [False, True])
def test_tiles_are_put_together_and_share_with_the_overview(last):
    """Two rows of two tiles of 2×2 tokens each; the sum of relevance is kept."""
    image = torch.nn.functional.interpolate(torch.randn(1, 3, 8, 8), size=(32, 32), mode="bilinear")[0]
    overview = torch.nn.functional.avg_pool2d(image[None], 2)[0]
    parts = tiles_of(image, 2, 2)
    tiles = torch.stack([*parts, overview] if last else [overview, *parts])
    owners = torch.cat([owners_of(2, 2, 8, 4 * k) for k in range(5)])
    placed = place_tokens(tiles[None], owners, {})
    assert torch.equal(placed.image, image)
    first = 0 if last else 4
    scores = torch.zeros(1, 20)
    scores[0, first + 3] = 1.0  # last token of the first tile
    grid = placed.grid(scores)
    assert grid.shape == (1, 4, 4)
    assert grid[0].nonzero().tolist() == [[1, 1]]
    scores = torch.zeros(1, 20)
    scores[0, 16 if last else 0] = 1.0  # the first quarter of the overview
    spread = placed.grid(scores)[0]
    assert torch.allclose(spread[:2, :2], torch.full((2, 2), 0.25))
    assert float(spread.sum()) == pytest.approx(1)


def padded_tiles(height):
    """An overview and four tiles of an image of some height and width 32, in the middle of a canvas of 32×32."""
    inner = torch.nn.functional.interpolate(torch.randn(1, 3, height // 4, 8), size=(height, 32), mode="bilinear")[0]
    top = (32 - height) // 2
    canvas = torch.nn.functional.pad(inner, (0, 0, top, top))
    overview = torch.nn.functional.interpolate(inner[None], size=(16, 16), mode="area")[0]
    return torch.stack([overview, *tiles_of(canvas, 2, 2)])


def test_an_overview_covers_the_part_without_padding():
    """An image of 16×32 in a canvas of 32×32: the overview is that of the middle rows."""
    tiles = padded_tiles(16)
    owners = torch.cat([owners_of(2, 2, 8, 4 * k) for k in range(5)])
    placed = place_tokens(tiles[None], owners, {"image_sizes": torch.tensor([[16, 32]])})
    assert placed.boxes[1] == (8, 0, 24, 32)
    scores = torch.zeros(1, 20)
    scores[0, 0] = 1.0
    assert placed.grid(scores)[0].nonzero().tolist() == [[1, 0], [1, 1]]


def test_tiles_whose_padding_has_no_tokens_have_gaps():
    """An image of 24×32 in a canvas of 32×32, of which the model leaves out the last row of tokens."""
    tiles = padded_tiles(24)
    upper, lower = [owners_of(2, 2, 8, k) for k in (4, 8)], [owners_of(1, 2, 8, k) for k in (12, 14)]
    lower = [torch.cat([one, torch.full((8, 16), -1)]) for one in lower]
    owners = torch.cat([owners_of(2, 2, 8), *upper, *lower])
    placed = place_tokens(tiles[None], owners, {"image_sizes": torch.tensor([[24, 32]])})
    scores = torch.arange(16.0)[None]
    scores[0, :4] = 0  # the overview
    assert placed.grid(scores)[0].int().tolist() == [[4, 5, 8, 9], [6, 7, 10, 11], [12, 13, 14, 15], [0, 0, 0, 0]]
    mixed = owners.clone()
    mixed[-16:-8, 0:4] = 15  # two tokens in one cell
    with pytest.raises(NotApplicableError, match="belong to several image tokens"):
        place_tokens(tiles[None], mixed, {"image_sizes": torch.tensor([[24, 32]])})


def test_flattened_patches_are_put_back():
    """Four patches make a token; the image is the one that was cut."""
    image = torch.randn(3, 16, 24)
    blocks = image.view(3, 2, 2, 4, 3, 2, 4).permute(1, 4, 2, 5, 0, 3, 6)  # rows, columns, 2, 2, channels, 4, 4
    patches = blocks[:, :, :, :, :, None].expand(-1, -1, -1, -1, -1, 2, -1, -1).reshape(24, -1)
    owners = torch.arange(6).repeat_interleave(4)
    placed = place_tokens(patches, owners, {"image_grid_thw": torch.tensor([[1, 4, 6]])})
    assert torch.equal(placed.image, image)
    assert placed.grid(torch.arange(6.0)[None]).tolist() == [[[0, 1, 2], [3, 4, 5]]]
    with pytest.raises(NotApplicableError, match="image_grid_thw"):
        place_tokens(patches, owners, {})


def test_tiles_that_are_no_parts_of_an_image_are_refused():
    owners = torch.cat([owners_of(2, 2, 8, 4 * k) for k in range(5)])
    with pytest.raises(NotApplicableError, match="5 images or tiles were given for one text"):
        place_tokens(torch.randn(1, 5, 3, 16, 16), owners, {})
