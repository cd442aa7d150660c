"""Features of perturbed images show their order: networks without attention, and orders inside the border."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import vitrail
from vitrail.capture import structure as structures
from vitrail.capture.feature_order import FeatureOrder, check_feature_order, feature_order
from vitrail.capture.inputs import ModelInputs
from vitrail.errors import GuessWarning, MapWarning, NotApplicableError

IMAGES = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))

REORDERED: dict[str, Callable[[Tensor], Tensor]] = {
    "": lambda x: x,
    "rows": lambda x: x.flip(2),
    "columns": lambda x: x.flip(3),
    "turned": lambda x: x.transpose(2, 3),
}


class Convolutions(nn.Module):
    """No attention; 64 positions, then 16, in another order or not, which may see the whole image or a corner of it."""

    def __init__(self, order: str = "", wide: float = 0.0, corner: float = 0.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem, self.merge = nn.Conv2d(3, 16, 4, 4), nn.Conv2d(16, 16, 2, 2)
        self.last, self.head = nn.Conv2d(16, 16, 3, padding=1), nn.Linear(16, 5)
        self.order, self.wide, self.corner = order, wide, corner

    def forward(self, images: Tensor) -> Tensor:
        x = self.stem(images)
        x = x + self.corner * x[:, :, :2, :2].mean((2, 3), keepdim=True)
        x = REORDERED[self.order](x)
        x = self.merge(x.relu()).relu()
        x = (1 - self.wide) * x + self.wide * x.mean((2, 3), keepdim=True)
        return self.head(self.last(x).relu().mean((2, 3)))


FEATURE_METHODS = ["gradcam_features", "cdam", "scorecam", "vit_cx"]


@pytest.mark.parametrize("method", FEATURE_METHODS)
def test_convolutions_in_order_are_explained_without_a_word(method: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        explained = vitrail.explain(Convolutions().eval(), IMAGES, method, target=1)
    assert explained.maps.shape == (2, 1, 32, 32)


@pytest.mark.parametrize("method", FEATURE_METHODS)
@pytest.mark.parametrize("order", ["rows", "columns", "turned"])
def test_convolutions_that_turn_the_image_are_refused(method: str, order: str) -> None:
    """Also where they begin to after a call."""
    model = Convolutions().eval()
    vitrail.explain(model, IMAGES, method, target=1)
    model.order = order
    for one in (model, Convolutions(order).eval()):
        with pytest.raises(NotApplicableError, match="not in the order of the image"):
            vitrail.explain(one, IMAGES, method, target=1)


def inner(change: Callable[[Tensor], Tensor]) -> Tensor:
    """The cells of a 7 × 7 grid, where those inside the border are changed."""
    cells = torch.arange(49).view(7, 7)
    changed = cells.clone()
    changed[1:-1, 1:-1] = change(cells[1:-1, 1:-1])
    return changed.flatten()


def swapped(cells: Tensor) -> Tensor:
    """Two neighbours in different places."""
    cells = cells.clone()
    cells[1, 1], cells[1, 2] = cells[1, 2].clone(), cells[1, 1].clone()
    return cells


INNER_ORDERS = {
    "two neighbours": inner(swapped),
    "transposed": inner(lambda cells: cells.T),
    "transposed block": inner(
        lambda cells: torch.cat(
            [cells[:, :1], torch.cat([cells[:1, 1:4], cells[1:4, 1:4].T, cells[4:, 1:4]]), cells[:, 4:]], 1
        )
    ),
    "rolled": inner(lambda cells: cells.roll(1, 0)),
    "mirrored": inner(lambda cells: cells.flip(1)),
    "shuffled": inner(
        lambda cells: cells.flatten()[torch.randperm(25, generator=torch.Generator().manual_seed(3))].view(5, 5)
    ),
}


class Ordered(nn.Module):
    """No attention; 7 × 7 features in any order, each of which sees its own cell most and the cells around it."""

    def __init__(self, order: Tensor) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem, self.mix = nn.Conv2d(3, 16, 8, 8), nn.Conv2d(16, 16, 3, padding=1)
        self.last, self.head, self.order = nn.Conv2d(16, 16, 1), nn.Linear(16, 5), order

    def forward(self, images: Tensor) -> Tensor:
        x = self.stem(images)
        x = (x + self.mix(x).relu()).flatten(2)[..., self.order].unflatten(2, (7, 7))
        return self.head(self.last(x).relu().mean((2, 3)))


@pytest.mark.parametrize("order", INNER_ORDERS)
def test_features_in_another_order_inside_the_border_are_refused(order: str) -> None:
    images = torch.rand(2, 3, 56, 56, generator=torch.Generator().manual_seed(1))
    with warnings.catch_warnings():
        warnings.simplefilter("error", GuessWarning)
        warnings.simplefilter("ignore", MapWarning)  # an untrained class may have no relevance
        vitrail.explain(Ordered(torch.arange(49)).eval(), images, "gradcam_features", target=1)
    with pytest.raises(NotApplicableError, match="not in the order of the image"):
        vitrail.explain(Ordered(INNER_ORDERS[order]).eval(), images, "gradcam_features", target=1)


@pytest.mark.parametrize("name", ["resnet18", "mobilenetv3_small_050", "poolformer_s12"])
def test_ordinary_networks_are_in_order(name: str) -> None:
    timm = pytest.importorskip("timm")
    torch.manual_seed(1)
    model, images = timm.create_model(name, num_classes=5).eval(), torch.randn(1, 3, 96, 96)
    structure, given = structures.read_structure(model, ModelInputs((images,))), ModelInputs((images,))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_feature_order(model, given, structure, 0, (3, 3))


def half_black(rows: int, columns: int) -> Tensor:
    image = torch.rand(1, 3, rows, columns, generator=torch.Generator().manual_seed(5))
    image[..., : columns // 2] = 0
    return image


@pytest.mark.parametrize("name", ["convnext_atto", "pvt_v2_b0"])
@pytest.mark.parametrize("size", [(64, 64), (96, 96)])
def test_images_with_a_black_half_are_explained_without_a_word(name: str, size: tuple[int, int]) -> None:
    """Norms of black parts respond to any noise alike."""
    timm = pytest.importorskip("timm")
    torch.manual_seed(0)
    model = timm.create_model(name, num_classes=5).eval()
    with warnings.catch_warnings():
        warnings.simplefilter("error", GuessWarning)
        vitrail.explain(model, half_black(*size), "gradcam_features", target=1)


#: Responses along the columns of 4 × 4 features of an MLP-Mixer, each of which sees the whole image.
MIXED = [[-1.41, -1.93, -2.03, -2.18], [0.31, 0.44, -0.61, 0.29], [1.23, -0.38, -0.34, -1.03], [2.04, 1.98, 1.07, 1.78]]


def along_rows(responses: list[list[float]]) -> Tensor:
    """Responses as given along rows, and clear ones along columns, for two draws."""
    rows = torch.tensor(responses, dtype=torch.float64)
    columns = 2 * torch.arange(rows.shape[1], dtype=torch.float64).expand_as(rows)
    return torch.stack([rows, columns]).expand(2, 2, *rows.shape)


def test_responses_that_differ_within_rows_do_not_show_another_order() -> None:
    assert feature_order(along_rows(MIXED)) is FeatureOrder.RASTER
    exchanged = [[10 * i + 0.1 * value for value in MIXED[i]] for i in (0, 2, 1, 3)]
    assert feature_order(along_rows(exchanged)) is FeatureOrder.OTHER


def test_weak_responses_that_contradict_the_order_are_not_measured() -> None:
    weak = [[-0.62, -0.08], [-1.64, -1.07]]
    assert feature_order(along_rows(weak)) is FeatureOrder.UNCLEAR
    assert feature_order(along_rows([[0.1 * value for value in row] for row in weak])) is FeatureOrder.ALIKE
    assert feature_order(along_rows([[torch.nan] * 2] * 2)) is FeatureOrder.SILENT
    assert feature_order(along_rows([[4 * value for value in row] for row in weak])) is FeatureOrder.OTHER


def test_stages_with_few_tokens_are_in_order() -> None:
    """Features of DaViT on small images see most of the image, and their own part most."""
    timm = pytest.importorskip("timm")
    torch.manual_seed(0)
    model, images = timm.create_model("davit_tiny", num_classes=5).eval(), torch.randn(1, 3, 64, 64)
    assert vitrail.explain(model, images, "gradcam_features", target=1).grid.shape[-2:] == (2, 2)


@pytest.mark.parametrize("check", [False, True])
@pytest.mark.parametrize("methods", [["gradcam_features"], ["gradcam_features", "cdam"]])
def test_what_could_not_be_measured_is_said_once_in_each_call(methods: list[str], check: bool) -> None:
    """A check explains the model again, also with random weights."""
    model = Convolutions(wide=1.0).eval()
    for _ in range(2):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            vitrail.explain(model, IMAGES, methods=methods, target=1, check=check)
        assert ["could not be measured" in str(warning.message) for warning in caught].count(True) == 1


@pytest.mark.parametrize("order", ["", "rows"])
def test_a_model_of_one_image_is_measured_image_by_image(order: str) -> None:
    class Single(Convolutions):
        def forward(self, images: Tensor) -> Tensor:
            return super().forward(images.view(1, 3, 32, 32))

    if not order:
        vitrail.explain(Single().eval(), IMAGES[:1], "gradcam_features", target=1)
        return
    with pytest.raises(NotApplicableError, match="not in the order of the image"):
        vitrail.explain(Single(order).eval(), IMAGES[:1], "gradcam_features", target=1)


def test_a_model_that_takes_no_other_image_is_warned_of() -> None:
    class Only(Convolutions):
        def forward(self, images: Tensor) -> Tensor:
            if not torch.equal(images[:1], IMAGES[:1]) or len(images) > 1:
                raise ValueError("another image")
            return super().forward(images)

    with pytest.warns(GuessWarning, match="could not be measured"):
        vitrail.explain(Only().eval(), IMAGES[:1], "gradcam_features", target=1)


def test_features_that_all_see_the_same_are_warned_of() -> None:
    with pytest.warns(GuessWarning, match="could not be measured"):
        vitrail.explain(Convolutions(wide=1.0).eval(), IMAGES, "gradcam_features", target=1)


def test_features_that_all_see_one_corner_most_are_in_their_place() -> None:
    """What counts is which feature sees a corner more than the others do."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MapWarning)  # an untrained class may have no relevance
        vitrail.explain(Convolutions(corner=4.0).eval(), IMAGES, "gradcam_features", target=1)
    for order in ("rows", "columns", "turned"):
        with pytest.raises(NotApplicableError, match="not in the order of the image"):
            vitrail.explain(Convolutions(order, corner=4.0).eval(), IMAGES, "gradcam_features", target=1)
