"""The order of tokens in feature maps of models that are no plain encoder, and what each pass checks again."""

from __future__ import annotations

import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import vitrail
from tests.capture.own_vit import OwnViT
from vitrail.capture import structure as structures
from vitrail.capture.inputs import ModelInputs
from vitrail.errors import GuessWarning, NotApplicableError

IMAGES = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))


class Pyramid(nn.Module):
    """64 tokens, then 16; the second stage may keep its tokens in another order."""

    def __init__(self, order: Tensor | None = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.merge = nn.Conv2d(3, 16, 4, 4), nn.Conv2d(16, 16, 2, 2)
        self.layers = nn.ModuleList(
            nn.ModuleDict({"norm": nn.LayerNorm(16), "qkv": nn.Linear(16, 48), "proj": nn.Linear(16, 16)})
            for _ in range(4)
        )
        self.head = nn.Linear(16, 5)
        self.order = torch.arange(16) if order is None else order

    def block(self, layer: nn.ModuleDict, x: Tensor) -> Tensor:
        q, k, v = layer["qkv"](layer["norm"](x)).view(len(x), -1, 3, 2, 8).permute(2, 0, 3, 1, 4)
        z = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return x + layer["proj"](z)

    def forward(self, images: Tensor) -> Tensor:
        x = self.embed(images).flatten(2).transpose(1, 2)
        for layer in self.layers[:2]:
            x = self.block(layer, x)
        x = self.merge(x.transpose(1, 2).unflatten(2, (8, 8))).flatten(2).transpose(1, 2)[:, self.order]
        for layer in self.layers[2:]:
            x = self.block(layer, x)
        return self.head(x.mean(1))


ORDERS = {
    "reversed": torch.arange(16).flip(0),
    "columns": torch.arange(16).view(4, 4).T.flatten(),
    "shuffled": torch.randperm(16, generator=torch.Generator().manual_seed(3)),
}


@pytest.mark.parametrize("method", ["gradcam_features", "cdam", "scorecam"])
def test_a_pyramid_in_raster_order_is_explained(method):
    model = Pyramid().eval()
    assert vitrail.explain(model, IMAGES, method, target=1).maps.shape == (2, 1, 32, 32)


@pytest.mark.parametrize("order", ORDERS)
def test_a_pyramid_with_permuted_tokens_is_refused(order):
    model = Pyramid(ORDERS[order]).eval()
    for _ in range(2):  # the answer is kept, the refusal as well
        with pytest.raises(NotApplicableError, match="not in the order of the image"):
            vitrail.explain(model, IMAGES, "gradcam_features", target=1)
    vitrail.explain(model, IMAGES, "gradient_x_input", target=1)


def test_features_that_come_from_everywhere_are_refused():
    class Blurred(Pyramid):
        def forward(self, images: Tensor) -> Tensor:
            return super().forward(images.mean((2, 3), keepdim=True).expand_as(images))

    with pytest.raises(NotApplicableError, match="could not be measured: all respond nearly alike"):
        vitrail.explain(Blurred().eval(), IMAGES, "scorecam", target=1)


@pytest.mark.parametrize("method", ["gradcam_features", "cdam"])
@pytest.mark.parametrize("name", ["coatnet_pico_rw_224", "swinv2_tiny_window8_256"])
def test_an_order_that_could_not_be_measured_is_refused_with_the_reason(name: str, method: str) -> None:
    """Tokens of an untrained CoAtNet see the whole image; the norms of an untrained SwinV2 multiply by zero."""
    timm = pytest.importorskip("timm")
    torch.manual_seed(0)
    swin = {"window_size": 4, "embed_dim": 24, "depths": (2, 2), "num_heads": (2, 4)} if "swin" in name else {}
    model = timm.create_model(name, img_size=64, num_classes=4, **swin).eval()
    reason = "they are the same for the image" if swin else "all respond nearly alike"
    with pytest.raises(NotApplicableError, match=f"could not be measured: {reason}.*load trained weights"):
        vitrail.explain(model, torch.rand(1, 3, 64, 64), method, target=1)


class Blocks(nn.Module):
    """Keeps its tokens as (b, blocks, tokens of a block, width), as NesT does, which is no grid of the image."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.norm = nn.Conv2d(3, 16, 8, 8), nn.LayerNorm(16)
        self.qkv, self.proj, self.head = nn.Linear(16, 48), nn.Linear(16, 16), nn.Linear(16, 5)

    def forward(self, images: Tensor) -> Tensor:
        x = self.embed(images).flatten(2).transpose(1, 2)[:, None]
        for _ in range(2):
            q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3, 2, 8)).permute(3, 0, 4, 1, 2, 5)
            z = F.scaled_dot_product_attention(q, k, v)
            x = x + self.proj(z.permute(0, 2, 3, 1, 4).flatten(-2))
        return self.head(x.mean((1, 2)))


@pytest.mark.parametrize("method", ["gradcam_features", "cdam"])
def test_a_row_of_tokens_is_no_grid(method):
    with pytest.raises(NotApplicableError):
        vitrail.explain(Blocks().eval(), IMAGES, method, target=1)


class Ensemble(nn.Module):
    """The sum of several models."""

    def __init__(self, *members: nn.Module) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)

    def forward(self, images: Tensor) -> Tensor:
        return sum(member(images) for member in self.members)


@pytest.mark.parametrize("method", ["gradcam_features", "cdam", "scorecam"])
def test_features_of_one_member_of_an_ensemble_are_not_those_of_all(method):
    model = Ensemble(OwnViT(), OwnViT()).eval()
    with pytest.raises(NotApplicableError, match="2 encoders side by side"):
        vitrail.explain(model, IMAGES, method, target=1)
    vitrail.explain(Ensemble(OwnViT()).eval(), IMAGES, method, target=1)


def test_padding_that_a_model_masks_out_is_in_its_place():
    transformers = pytest.importorskip("transformers")
    config = transformers.DebertaV2Config(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16, vocab_size=30, num_labels=3,
        pad_token_id=0,
    )  # fmt: skip
    model = transformers.DebertaV2ForSequenceClassification(config).eval()
    ids = torch.tensor([[5, 6, 7, 0, 0]])
    found = structures.read_structure(model, ModelInputs((), {"input_ids": ids, "attention_mask": (ids > 0).long()}))
    assert next(c for c in found.checks if c.name == "which token is which word").passed


# -- every pass --------------------------------------------------------------------------------------------------------


class InputDependent(OwnViT):
    """Skips its last block, or drops tokens, for images that are bright on average."""

    def __init__(self, drops: bool) -> None:
        super().__init__()
        self.drops = drops

    def encode(self, x: Tensor) -> Tensor:
        bright = bool(self.bright)
        for i, block in enumerate(self.blocks):
            if bright and i == 2:
                if not self.drops:
                    break
                x = x[:, :9]
            x = x + self.attend(i, block["norm1"](x))
            x = x + block["down"](F.gelu(block["up"](block["norm2"](x))))
        return self.norm(x)

    def forward(self, images: Tensor) -> Tensor:
        self.bright = images.mean() > 0.5
        return super().forward(images)


@pytest.mark.parametrize("drops", [False, True])
def test_a_pass_with_other_attention_calls_is_measured_again(drops):
    model = InputDependent(drops).eval()
    vitrail.explain(model, IMAGES, "rollout", target=1)
    fresh = InputDependent(drops).eval()
    fresh.load_state_dict(model.state_dict())
    if drops:  # a model that drops tokens on its way is no plain encoder
        for one in (model, fresh):
            with pytest.raises(NotApplicableError, match="changes its number of tokens"):
                vitrail.explain(one, IMAGES + 3, "rollout", target=1)
    else:
        found, expected = (vitrail.explain(one, IMAGES + 3, "rollout", target=1).grid for one in (model, fresh))
        assert torch.equal(found, expected)


def test_the_structure_is_checked_again_under_another_arithmetic(monkeypatch):
    model, measured = OwnViT().eval(), []
    measure = structures._measure
    monkeypatch.setattr(structures, "_measure", lambda *a: measured.append(1) or measure(*a))
    given = ModelInputs((IMAGES,))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", GuessWarning)
        for _ in range(2):
            structures.read_structure(model, given)
        assert len(measured) == 1
        with torch.autocast("cpu", torch.bfloat16):
            for _ in range(2):
                structures.read_structure(model, given)
        assert len(measured) == 2
        torch.use_deterministic_algorithms(True)
        try:
            structures.read_structure(model, given)
        finally:
            torch.use_deterministic_algorithms(False)
        assert len(measured) == 3
        structures.read_structure(model, given)
    assert len(measured) == 3


@pytest.mark.parametrize("method", ["gradcam_features", "cdam"])
def test_an_order_that_changes_after_a_call_is_seen(method: str) -> None:
    timm = pytest.importorskip("timm")
    torch.manual_seed(1)
    model = timm.create_model(
        "swin_tiny_patch4_window7_224", img_size=56, embed_dim=24, depths=(2, 2), num_heads=(2, 3), num_classes=4
    ).eval()
    images = torch.rand(1, 3, 56, 56)
    for _ in range(2):
        vitrail.explain(model, images, method, target=1)
    embed = model.patch_embed.forward
    model.patch_embed.forward = lambda x: embed(x).flip(1)
    with pytest.raises(NotApplicableError, match="not in the order of the image"):
        vitrail.explain(model, images, method, target=1)


@pytest.mark.parametrize("order", ["", *ORDERS])
def test_tokens_that_all_see_one_pixel_most_are_in_their_place(order: str) -> None:
    class Loud(Pyramid):
        def forward(self, images: Tensor) -> Tensor:
            return super().forward(images + 3 * images[:, :, :1, :1])

    if not order:
        vitrail.explain(Loud().eval(), IMAGES, "scorecam", target=1)
        return
    with pytest.raises(NotApplicableError, match="not in the order of the image"):
        vitrail.explain(Loud(ORDERS[order]).eval(), IMAGES, "scorecam", target=1)
