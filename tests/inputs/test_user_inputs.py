"""Invalid input raises an error of one line that states the problem and how to fix it."""

from __future__ import annotations

import struct
import warnings
import zlib
from dataclasses import replace
from functools import wraps

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import vitrail
from vitrail.errors import (
    GuessWarning,
    InputError,
    ModelError,
    NotApplicableError,
    OptionError,
    TargetError,
    VitrailError,
    WeightsError,
)
from vitrail.methods import METHODS, find
from vitrail.models.checkpoint import load_weights, read_weights
from vitrail.models.plain_vit import PlainViT
from vitrail.models.preprocess import open_image
from vitrail.testing import quick, tiny_vit

IMAGES = torch.zeros(2, 3, 32, 32)


def write_huge_png(path) -> None:
    """Write a valid PNG of 30,000×30,000 black pixels, compressed to kilobytes."""
    side = 30_000

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    packer = zlib.compressobj(9)
    row = bytes(side // 8 + 2)
    packed = b"".join(packer.compress(row) for _ in range(side)) + packer.flush()
    header = struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", packed) + chunk(b"IEND", b""))


def nan_model() -> nn.Module:
    model = tiny_vit()
    model.blocks[1].mlp[0].weight.data[0, 0] = torch.nan
    return model


class ConvNet(nn.Sequential):
    """A small convolutional network."""

    def __init__(self) -> None:
        super().__init__(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5))


INVALID = {
    "channels": (lambda: vitrail.explain(tiny_vit(), torch.zeros(1, 4, 32, 32)), InputError, "4 channels.*takes 3"),
    "size": (lambda: vitrail.explain(tiny_vit(), torch.zeros(1, 3, 48, 48)), InputError, "48×48.*resize"),
    "flat": (lambda: vitrail.explain(tiny_vit(), torch.zeros(32, 32)), InputError, "batch, channels, height, width"),
    "bytes": (lambda: vitrail.explain(tiny_vit(), IMAGES.byte()), InputError, "raw pixels"),
    "empty": (lambda: vitrail.explain(tiny_vit(), torch.zeros(0, 3, 32, 32)), InputError, "empty"),
    "no list": (lambda: vitrail.explain(tiny_vit(), []), InputError, "empty"),
    "mixed": (lambda: vitrail.explain(tiny_vit(), [IMAGES[0], IMAGES[0, :, :8]]), InputError, "different shapes"),
    "number": (lambda: vitrail.explain(tiny_vit(), 3), InputError, "cannot explain a int"),
    "nan image": (lambda: vitrail.explain(tiny_vit(), IMAGES * torch.nan), InputError, "NaN"),
    "unknown make": (lambda: vitrail.explain(tiny_vit(), Image.new("RGB", (9, 9))), InputError, "preprocess="),
    "class": (lambda: vitrail.explain(tiny_vit(), IMAGES, target=5), TargetError, "class 5.*0 to 4"),
    "negative": (lambda: vitrail.explain(tiny_vit(), IMAGES, target=-1), TargetError, "class -1"),
    "fraction": (lambda: vitrail.explain(tiny_vit(), IMAGES, target=[0.5, 1]), TargetError, "not a class"),
    "targets": (lambda: vitrail.explain(tiny_vit(), IMAGES, target=[0, 1, 2]), TargetError, r"one per image \(2\)"),
    "ragged": (lambda: vitrail.explain(tiny_vit(), IMAGES, target=[[0], [1, 2]]), TargetError, "same number"),
    "name": (lambda: vitrail.explain(tiny_vit(), IMAGES, target="cat"), TargetError, "class names are unknown"),
    "function": (lambda: vitrail.explain(tiny_vit(), IMAGES, target=lambda o: o.sum()), TargetError, "one number per"),
    "failing": (
        lambda: vitrail.explain(tiny_vit(), IMAGES, target=lambda o: o.logits), TargetError, "logits'.*tensor of shape"
    ),
    "no tensor": (lambda: vitrail.explain(tiny_vit(), IMAGES, target=lambda o: 3), TargetError, "not a tensor"),
    "detached": (lambda: vitrail.explain(tiny_vit(), IMAGES, target=lambda o: o[:, 0].detach()), TargetError, "detach"),
    "nan weights": (lambda: vitrail.explain(nan_model(), IMAGES), ModelError, "blocks.1.mlp.0.weight"),
    "convolutions": (lambda: vitrail.explain(ConvNet(), IMAGES), NotApplicableError, "has no attention"),
    "method": (lambda: vitrail.explain(tiny_vit(), IMAGES, "rolout"), OptionError, "did you mean rollout"),
    "option": (lambda: vitrail.explain(tiny_vit(), IMAGES, "rollout", depth=2), OptionError, "it takes start=0"),
    "value": (lambda: vitrail.explain(tiny_vit(), IMAGES, "vtranm", variant="all"), OptionError, "'af\\+l'"),
    "score": (lambda: vitrail.explain(tiny_vit(), IMAGES, "vtranm:score=loss"), OptionError, "logprob"),
    "variant": (lambda: vitrail.explain(tiny_vit(), IMAGES, "gradtoken:7"), OptionError, "no variant '7'"),
    "depth": (lambda: vitrail.explain(tiny_vit(), IMAGES, "gradtoken", depth=9), OptionError, "blocks 1 to 3"),
    "layer": (lambda: vitrail.explain(tiny_vit(), IMAGES, "raw_attention", layer=9), OptionError, "layer=9"),
    "head": (lambda: vitrail.explain(tiny_vit(), IMAGES, "raw_attention", head=9), OptionError, "head=9"),
    "start": (lambda: vitrail.explain(tiny_vit(), IMAGES, "rollout", start=9), OptionError, "start=9"),
    "methods": (lambda: vitrail.explain(tiny_vit(), IMAGES, methods=[]), OptionError, "no methods"),
    "both": (lambda: vitrail.explain(tiny_vit(), IMAGES, methods=["rollout"], start=1), OptionError, "each its"),
    "pieces": (lambda: vitrail.explain(tiny_vit(), IMAGES, batch_size=0), OptionError, "at least 1"),
    "layout": (
        lambda: vitrail.explain(tiny_vit(), IMAGES, layout=vitrail.Layout(prefix=2, grid=(4, 4))), ModelError, "17"
    ),
    "discard": (lambda: vitrail.explain(tiny_vit(), IMAGES, "rollout", discard=1.5), OptionError, "share"),
    "list": (lambda: vitrail.explain(tiny_vit(), IMAGES, ["rollout"]), OptionError, "methods="),
    "one and many": (lambda: vitrail.explain(tiny_vit(), IMAGES, "rollout", methods=["gradcam"]), OptionError, "both"),
    "top0": (lambda: vitrail.explain(tiny_vit(), IMAGES, target="top0"), TargetError, "top1"),
    "far readout": (
        lambda: vitrail.explain(tiny_vit(), IMAGES, layout=vitrail.Layout(readout=(0, 99))), ModelError, "has 17"
    ),
    "readout": (lambda: vitrail.Layout(readout="pooler"), ModelError, "unknown readout"),
    "source": (lambda: vitrail.load("keras:vit"), ModelError, "timm:"),
    "timm name": (lambda: vitrail.load("timm:vit_tiny_patch16_225", pretrained=False), ModelError, "did you mean"),
    "no file": (lambda: vitrail.load("timm:vit_tiny_patch16_224", weights="no.pth"), WeightsError, "not a file"),
}  # fmt: skip


@pytest.mark.parametrize("case", INVALID)
def test_error_is_one_line(case):
    call, error, message = INVALID[case]
    with pytest.raises(error, match=message) as caught:
        call()
    assert isinstance(caught.value, VitrailError)
    assert "\n" not in str(caught.value)


@pytest.fixture(scope="module")
def swin():
    import timm

    torch.manual_seed(0)
    return timm.create_model(
        "swin_tiny_patch4_window7_224", img_size=56, embed_dim=24, depths=(2, 2), num_heads=(2, 2), num_classes=4
    )


@pytest.mark.parametrize("method", list(vitrail.methods()))
@pytest.mark.filterwarnings("ignore::vitrail.errors.MapWarning")
def test_windowed_models_are_explained_or_raise_with_a_reason(method, swin):
    images = torch.randn(2, 3, 56, 56)
    _, line, _ = find(method)
    if line.applies.reads == "attention":
        with pytest.raises(NotApplicableError, match=f"{line.name} does not apply to SwinTransformer.*windows.*use "):
            vitrail.explain(swin, images, method)
    else:
        found = vitrail.explain(swin, images, method, target=[[1, 2]], **quick()[method])
        assert found.maps.shape == (2, 2, 56, 56)
        assert not found.constant.all()


def test_vit_without_mlps():
    class AttentionOnly(PlainViT):
        """Blocks without an MLP."""

        def forward(self, images):
            x = self.embed(images).flatten(2).transpose(1, 2)
            for block in self.blocks:
                q, k, v = block.qkv(block.norm1(x)).unflatten(-1, (3, 4, -1)).permute(2, 0, 3, 1, 4)
                z = nn.functional.scaled_dot_product_attention(q, k, v)
                x = x + block.proj(z.transpose(1, 2).flatten(2))
            return self.head(x.mean(1))

    with pytest.raises(NotApplicableError, match="block 0 has no such pair of sums; transformer_mm needs none"):
        vitrail.explain(AttentionOnly(), IMAGES, "vtranm")
    assert not vitrail.explain(AttentionOnly(), torch.randn(2, 3, 32, 32), "vtranm:af", target=1).constant.all()


def test_vit_without_norms_has_no_feature_map():
    class WithoutNorms(PlainViT):
        """One attention layer over the patches, without layer norms."""

        def forward(self, images):
            x = self.embed(images).flatten(2).transpose(1, 2)
            q, k, v = self.blocks[0].qkv(x).unflatten(-1, (3, 4, -1)).permute(2, 0, 3, 1, 4)
            z = nn.functional.scaled_dot_product_attention(q, k, v)
            return self.head((x + self.blocks[0].proj(z.transpose(1, 2).flatten(2))).mean(1))

    for method in ("cdam", "gradcam_features", "scorecam", "vit_cx"):
        with pytest.raises(NotApplicableError, match="no feature map was found"):
            vitrail.explain(WithoutNorms(), torch.randn(2, 3, 32, 32), method, target=1)


@pytest.mark.parametrize("method", ["cdam", "gradcam_features", "scorecam", "vit_cx"])
def test_features_of_image_parts_are_not_a_feature_map(method):
    import timm

    torch.manual_seed(0)
    model = timm.create_model("mobilevit_xxs", num_classes=4)
    with pytest.raises(NotApplicableError, match="cuts its images into 4 parts before it normalises them"):
        vitrail.explain(model, torch.randn(2, 3, 64, 64), method, target=1)


def test_a_method_must_return_one_map_per_input(monkeypatch):
    line = METHODS["rollout"]

    @wraps(line.compute)
    def fourfold(trace, **options):
        return line.compute(trace, **options).repeat(4, 1)

    monkeypatch.setitem(METHODS, "rollout", replace(line, compute=fourfold))
    with pytest.raises(ModelError, match="rollout gave 8 maps for 2 inputs"):
        vitrail.explain(tiny_vit(), torch.randn(2, 3, 32, 32), "rollout", target=1)


def test_zero_head_warns_and_flags_constant_maps():
    model = tiny_vit()
    nn.init.zeros_(model.head.weight)
    with (
        pytest.warns(vitrail.errors.GuessWarning, match="untrained head"),
        pytest.warns(vitrail.errors.MapWarning, match="2 of 2 maps are constant"),
    ):
        found = vitrail.explain(model, torch.randn(2, 3, 32, 32), "transformer_mm")
    assert found.constant.all()
    assert not found.maps.any()
    assert "untrained head" in str(found.structure)


def test_unreadable_images_raise(tmp_path):
    (tmp_path / "text.jpg").write_text("not an image")
    write_huge_png(tmp_path / "huge.png")
    Image.new("RGB", (64, 64), "red").save(tmp_path / "complete.jpg")
    (tmp_path / "cut.jpg").write_bytes((tmp_path / "complete.jpg").read_bytes()[:-200])
    cases = {
        "text.jpg": "not an image", "huge.png": r"million pixels, the limit is 100 million: shrink",
        "cut.jpg": "damaged or truncated",
        "none.jpg": "does not exist", ".": "is a folder",
    }  # fmt: skip
    for name, message in cases.items():
        with pytest.raises(InputError, match=message):
            open_image(tmp_path / name)
    assert open_image(tmp_path / "complete.jpg").size == (64, 64)


def test_images_of_every_mode_become_rgb(tmp_path):
    deep = Image.fromarray((np.arange(64).reshape(8, 8) * 1000).astype(np.uint16))
    images = {
        "grey16": deep, "grey": Image.new("L", (8, 8), 100), "cmyk": Image.new("CMYK", (8, 8)),
        "alpha": Image.new("RGBA", (8, 8), (255, 0, 0, 0)), "palette": Image.new("P", (8, 8)),
    }  # fmt: skip
    for name, image in images.items():
        path = tmp_path / f"{name}.{'tif' if name in ('grey16', 'cmyk') else 'png'}"
        image.save(path)
        found = open_image(path)
        assert found.mode == "RGB", name
        if name == "grey16":
            assert len(np.unique(np.asarray(found))) > 50, "16-bit values are scaled, not clipped"
        if name == "alpha":
            assert found.getpixel((0, 0)) == (255, 255, 255), "transparent pixels become white, not black"
    rotated = Image.new("RGB", (8, 4), "red")
    exif = Image.Exif()
    exif[0x0112] = 6
    rotated.save(tmp_path / "rotated.jpg", exif=exif)
    assert open_image(tmp_path / "rotated.jpg").size == (4, 8)


def test_weights_files(tmp_path):
    from safetensors.torch import save_file

    model = tiny_vit(seed=1)
    state = model.state_dict()
    save_file(state, tmp_path / "w.safetensors")
    torch.save({"model": {f"module.{k}": v for k, v in state.items()}, "epoch": 3}, tmp_path / "w.pth")
    for name in ("w.safetensors", "w.pth"):
        fresh = tiny_vit(seed=2)
        load_weights(fresh, read_weights(tmp_path / name), name)
        assert all(torch.equal(v, state[k]) for k, v in fresh.state_dict().items())
    wrong = {k: v for k, v in state.items() if k != "head.bias"}
    wrong |= {"tail.bias": torch.zeros(1), "prefix": torch.zeros(2)}
    with pytest.raises(WeightsError, match=r"missing: head.bias.*unexpected: tail.bias.*prefix \(2,\) instead of"):
        load_weights(tiny_vit(), wrong, "w.pth")


def test_weights_files_that_execute_code_raise(tmp_path):
    import pickle

    ran = tmp_path / "ran"

    class ExecutesCode:
        def __reduce__(self):
            return (open, (str(ran), "w"))

    torch.save({"model": ExecutesCode()}, tmp_path / "code.pth")
    (tmp_path / "plain.pth").write_bytes(pickle.dumps({"w": ExecutesCode()}))
    (tmp_path / "junk.pth").write_bytes(b"junk" * 100)
    (tmp_path / "junk.safetensors").write_bytes(b"junk" * 100)
    torch.save([1, 2], tmp_path / "list.pth")
    for name in ("code.pth", "plain.pth", "junk.pth", "junk.safetensors", "list.pth"):
        with pytest.raises(WeightsError):
            read_weights(tmp_path / name)
    assert not ran.exists()


@pytest.mark.parametrize(("name", "shape", "message"), [
    ("scenes-video", (1, 10, 3, 64, 64), "an input of time 10, height 64, width 64 .* it takes time 12"),
    ("scenes-video", (1, 12, 3, 32, 32), "time 12, height 32, width 32 .* it takes time 12, height 64, width 64"),
    ("tones", (1, 100, 64), "time 100, frequency 64 .* it takes time 128, frequency 64"),
])  # fmt: skip
def test_a_video_or_sound_of_another_length_says_what_the_model_takes(name, shape, message):
    with pytest.raises(InputError, match=message):
        vitrail.explain(vitrail.load(name), torch.zeros(shape), "gradient_x_input", target=0)


class TakesSpectrogram(nn.Module):
    """A model whose parameter does not say that it takes (batch, time, frequency)."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(1, 2, 4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.convolution(x[:, None]).mean((2, 3))


def test_a_spectrogram_that_was_taken_for_an_image_names_the_fix():
    spectrogram = torch.randn(1, 16, 8)
    message = r"'x': tensor.*roles=\{'x': 'spectrogram'\}"
    with pytest.warns(GuessWarning), pytest.raises(InputError, match=message):
        vitrail.explain(TakesSpectrogram(), spectrogram, "gradient_x_input", target=0)
    roles = {"x": "spectrogram"}
    e = vitrail.explain(
        TakesSpectrogram(), {"x": spectrogram}, "gradient_x_input", target=0, roles=roles, scores="softmax"
    )
    assert e.maps.shape == (1, 1, 16, 8)


def test_the_name_of_a_parameter_says_that_a_tensor_is_a_spectrogram():
    e = vitrail.explain(vitrail.load("tones"), torch.randn(2, 128, 64), "gradient_x_input", target=0)
    assert [axis.name for axis in e.axes] == ["time", "frequency"]


def test_float_pixels_up_to_255_give_a_warning_and_normalised_images_do_not():
    model = vitrail.LoadedModel(tiny_vit(), vitrail.Preprocess((32, 32)), name="mine")
    pixels = torch.randint(0, 256, (1, 3, 32, 32), generator=torch.Generator().manual_seed(0)).float()
    for given in (pixels, list(pixels), pixels[0], {"images": pixels}, {"images": pixels.double()}):
        with pytest.warns(GuessWarning, match=r"values up to 255, .*scale them to \[0, 1\] and normalise them"):
            vitrail.explain(model, given, "rollout")
    with warnings.catch_warnings():
        warnings.simplefilter("error", GuessWarning)
        normalised = 4 * torch.randn(1, 3, 32, 32)
        for given in (normalised, list(normalised), {"images": normalised}):
            vitrail.explain(model, given, "rollout")
        vitrail.explain(tiny_vit(), pixels, "rollout")  # a model whose normalisation is not known


@pytest.mark.slow
def test_float_pixels_of_a_hugging_face_model_give_a_warning():
    transformers = pytest.importorskip("transformers")
    config = transformers.ViTConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, image_size=32, patch_size=8
    )
    model = transformers.ViTForImageClassification(config).eval()
    pixels = torch.randint(0, 256, (1, 3, 32, 32), generator=torch.Generator().manual_seed(0)).float()
    with pytest.warns(GuessWarning, match="values up to 255"):
        vitrail.explain(model, {"pixel_values": pixels}, "rollout")
