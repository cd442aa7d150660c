"""The grid pointing game, DiFull and DiPart."""

from collections.abc import Callable

import pytest
import torch
from timm import create_model
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor

import vitrail
from vitrail.data import draw_grids
from vitrail.errors import DataError, InputError, NotApplicableError, OptionError
from vitrail.scores import DisconnectedGrid, aggregate_attributions, cell_masks, compose_grids, score_grid_pointing


def small_vit(**given: object) -> torch.nn.Module:
    torch.manual_seed(0)
    return create_model("vit_tiny_patch16_224", img_size=32, depth=3, num_classes=6, **given).eval()


def test_share_and_maximum_of_known_maps() -> None:
    maps = cell_masks(2, (8, 8)).double()[None]
    found = score_grid_pointing(maps)
    assert found["cell_share"].tolist() == [1.0]
    assert found["cell_peak"].tolist() == [1.0]
    shifted = score_grid_pointing(maps.roll(1, 1))
    assert shifted["cell_share"].tolist() == [0.0]
    same = score_grid_pointing(torch.rand(1, 1, 8, 8, generator=torch.Generator().manual_seed(0)).expand(-1, 4, -1, -1))
    assert same["cell_share"].item() == pytest.approx(0.25)  # a class-agnostic map, whatever it is
    negative = score_grid_pointing(maps - 1)
    assert negative["cell_share"].tolist() == [0.0]  # no positive relevance anywhere


def test_constant_maps_are_at_chance_and_counted() -> None:
    found = score_grid_pointing(torch.ones(1, 4, 6, 6))
    assert (found["cell_peak"].item(), found["cell_share"].item(), found["flat"].item()) == (0.25, 0.0, 4)


def test_uneven_cells_cover_the_image_once() -> None:
    masks = cell_masks(3, (224, 10))
    assert (masks.sum(0) == 1).all()


def test_grids_hold_their_images_at_their_cells() -> None:
    images = torch.arange(9.0).view(1, 9, 1, 1, 1).expand(-1, -1, 3, 12, 12)
    grid = compose_grids(images, 3)
    for cell, mask in enumerate(cell_masks(3, (12, 12))):
        torch.testing.assert_close(grid[0, :, mask], torch.full_like(grid[0, :, mask], cell))


def test_drawn_grids_have_distinct_classes_and_use_images_evenly() -> None:
    labels = torch.arange(24) // 2
    grids = draw_grids(labels.numpy(), 30, seed=1)
    assert all(len(set(labels[list(grid)].tolist())) == 4 for grid in grids)
    counts = torch.bincount(torch.from_numpy(grids).flatten(), minlength=24)
    assert counts.max() - counts.min() <= 2
    assert (draw_grids(labels.numpy(), 30, seed=1) == grids).all()
    with pytest.raises(DataError, match="needs 4 different classes"):
        draw_grids([1, 1, 2, 3], 1)


def test_refusals() -> None:
    with pytest.raises(InputError, match="a grid has 4 cells"):
        score_grid_pointing(torch.rand(1, 3, 4, 4))
    with pytest.raises(OptionError, match="ascend from 0 to 1"):
        aggregate_attributions(torch.rand(2, 4, 4), torch.rand(2), (0, 0.7, 0.5, 1))
    with pytest.raises(NotApplicableError, match="one class token"):
        DisconnectedGrid(small_vit(global_pool="avg", class_token=False))


def test_aggatt_orders_maps_from_best_to_worst() -> None:
    maps = torch.arange(1, 101.0).view(100, 1, 1) * torch.tensor([[1.0, 0.5]])
    maps[:50, 0, 1] = 0
    bins = aggregate_attributions(maps, -torch.arange(100.0), (0, 0.5, 1))
    assert bins[:, 0, 1].tolist() == [0.0, 0.5]


@pytest.mark.parametrize("kind", [{}, {"init_values": 0.1, "no_embed_class": True}])
def test_difull_is_the_model_on_each_cell_and_dipart_its_mean(kind: dict[str, object]) -> None:
    model = small_vit(**kind)
    cells = torch.randn(2, 4, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    grid = compose_grids(cells, size=(64, 64))
    with torch.no_grad():
        alone = torch.stack([model(cells[:, cell]) for cell in range(4)], 1)
        for cell in range(4):
            torch.testing.assert_close(DisconnectedGrid(model, cell=cell)(grid), alone[:, cell], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(DisconnectedGrid(model)(grid), alone.mean(1), rtol=1e-4, atol=1e-5)


class OwnFeatures(VisionTransformer):
    """A model whose tokens all have the mean of the tokens added."""

    def forward_features(self, x: Tensor, **options: object) -> Tensor:
        tokens: Tensor = super().forward_features(x, **options)
        return tokens + tokens.mean(1, keepdim=True)


class Unmasked(torch.nn.Module):
    """A block that attends to all tokens whatever the mask is."""

    def __init__(self, block: torch.nn.Module) -> None:
        super().__init__()
        self.block = block

    def forward(self, x: Tensor, **options: object) -> Tensor:  # noqa: ARG002
        tokens: Tensor = self.block(x)
        return tokens


def own_features() -> torch.nn.Module:
    torch.manual_seed(0)
    return OwnFeatures(img_size=32, patch_size=16, embed_dim=64, depth=2, num_heads=2, num_classes=6).eval()


def hooked() -> torch.nn.Module:
    model = small_vit()
    model.patch_embed.register_forward_hook(lambda *given: given[-1] * 2)
    return model


def other_positions() -> torch.nn.Module:
    model = small_vit()
    model._pos_embed = lambda x: torch.cat([model.cls_token.expand(len(x), -1, -1), x], 1) - model.pos_embed
    return model


def constant_head() -> torch.nn.Module:
    """Its outputs are those of a cell, its tokens are not."""
    model = hooked()
    torch.nn.init.zeros_(model.head.weight)
    return model


def without_masks() -> torch.nn.Module:
    model = small_vit()
    model.blocks = torch.nn.Sequential(*map(Unmasked, model.blocks))
    return model


def further_layer() -> torch.nn.Module:
    model = small_vit()
    model.patch_drop = torch.nn.Sequential(torch.nn.LayerNorm(192), torch.nn.Linear(192, 192))
    return model


@pytest.mark.parametrize("make", [own_features, hooked, other_positions, constant_head, without_masks, further_layer])
@pytest.mark.parametrize("cell", [None, 2])
def test_models_that_compute_their_tokens_otherwise_are_refused(
    make: Callable[[], torch.nn.Module], cell: int | None
) -> None:
    with pytest.raises(NotApplicableError, match=r"computes them otherwise: its own output .* differ by [\d.e+]+ %"):
        DisconnectedGrid(make(), cell=cell)


def test_models_that_fail_on_cells_are_refused_with_the_reason() -> None:
    model = small_vit()
    model.blocks[0].forward = lambda x: x
    with pytest.raises(NotApplicableError, match=r"cannot be run on the cells of a grid \(TypeError: .*attn_mask"):
        DisconnectedGrid(model)
    model = small_vit()
    model.patch_embed = torch.nn.Flatten()
    with pytest.raises(NotApplicableError, match=r"it has no patch_embed\.img_size"):
        DisconnectedGrid(model)


def test_the_comparison_leaves_a_model_as_it_was() -> None:
    model = small_vit(dynamic_img_size=True).train()
    grid = DisconnectedGrid(model, cell=1)
    assert model.training
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert not model.head._forward_pre_hooks
    assert grid.model is model


def test_propagation_stays_in_the_cell_that_difull_reads() -> None:
    model = DisconnectedGrid(small_vit(), cell=2)
    grid = torch.randn(1, 3, 64, 64, generator=torch.Generator().manual_seed(2))
    found = vitrail.explain(model, grid, methods=["transformer_mm", "attnlrp", "raw_attention"], target=1,
                            layout=model.layout)  # fmt: skip
    for explanation in found.values():
        side = explanation.grid.shape[-1]
        outside = explanation.grid[0, 0].abs() * ~cell_masks(2, (side, side))[2]
        assert outside.max() == 0
        assert explanation.grid.abs().max() > 0


def test_the_smallest_entries_of_a_batch_are_dropped_as_of_each_grid_alone() -> None:
    """DiFull excludes the tokens of other cells, the same ones of every grid."""
    model = DisconnectedGrid(small_vit(), cell=2)
    grids = torch.randn(3, 3, 64, 64, generator=torch.Generator().manual_seed(3))
    together = vitrail.explain(model, grids, "grad_rollout", target=1, layout=model.layout).grid
    alone = [vitrail.explain(model, grids[i : i + 1], "grad_rollout", target=1, layout=model.layout) for i in range(3)]
    torch.testing.assert_close(together, torch.cat([e.grid for e in alone]), rtol=1e-4, atol=1e-7)
