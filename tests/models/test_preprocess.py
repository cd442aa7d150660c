"""Images of every kind and their preprocessing."""

import struct
import zlib
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from PIL import Image

import vitrail
from vitrail.errors import GuessWarning, InputError
from vitrail.models.preprocess import Preprocess, open_image, to_rgb
from vitrail.testing import tiny_vit

pytestmark = pytest.mark.filterwarnings("ignore::vitrail.errors.MapWarning")
IMAGES = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
PREPROCESS = Preprocess((32, 32), (0.5,) * 3, (0.5,) * 3, 1.0)
RAMP = np.linspace(0, 1, 64).reshape(8, 8)


def explain(inputs, **options):
    return vitrail.explain(tiny_vit(), inputs, "rollout", **options)


# -- images ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", ["tiff", "png"])
def test_16_bit_files_are_divided_by_65535(suffix, tmp_path):
    path = tmp_path / f"grey.{suffix}"
    Image.fromarray((RAMP * 65535).round().astype(np.uint16)).save(path)
    assert np.asarray(Image.open(path)).max() == 65535
    pixels = np.asarray(open_image(path))
    assert np.abs(pixels - (RAMP * 255)[..., None]).max() <= 0.51
    assert explain(path, preprocess=PREPROCESS).maps.shape == (1, 1, 32, 32)


def test_float_tiff_in_the_unit_range_is_kept(tmp_path):
    path = tmp_path / "float.tiff"
    Image.fromarray(RAMP.astype(np.float32)).save(path)
    assert np.abs(np.asarray(open_image(path)) - (RAMP * 255)[..., None]).max() <= 0.51


@pytest.mark.parametrize(("values", "message"), [
    (RAMP * 300 - 10, "floats from -10 to 290, expected 0 to 1"),
    (RAMP * np.nan, "floats from nan to nan, expected 0 to 1"),
])  # fmt: skip
def test_floats_outside_the_unit_range_raise(values, message, tmp_path):
    path = tmp_path / "float.tiff"
    Image.fromarray(values.astype(np.float32)).save(path)
    with pytest.raises(InputError, match=f"float.tiff: the image holds {message}.*scale it first"):
        open_image(path)


def test_integers_beyond_16_bits_raise():
    with pytest.raises(InputError, match="integers from 0 to 70000, expected 0 to 65535"):
        to_rgb(Image.fromarray((RAMP * 70000).astype(np.int32)))


@pytest.mark.parametrize("mode", ["1", "L", "P", "CMYK", "LA", "La", "PA", "RGBA", "RGBa", "YCbCr", "HSV", "I", "I;16"])
def test_every_mode_becomes_rgb(mode):
    image = Image.new(mode, (8, 6))
    assert (to_rgb(image).mode, to_rgb(image).size) == ("RGB", (8, 6))


def test_exif_orientation_of_16_bit_images_is_kept(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(np.zeros((8, 4), np.uint16)).save(tmp_path / "turned.png", exif=exif)
    assert open_image(tmp_path / "turned.png").size == (8, 4)


def test_empty_images_raise():
    with pytest.raises(InputError, match="empty"):
        to_rgb(Image.new("RGB", (0, 4)))


def test_preprocess_may_return_a_numpy_array():
    image = Image.new("RGB", (40, 40), "red")
    expected = explain(image, preprocess=PREPROCESS)
    found = explain(image, preprocess=lambda i: PREPROCESS(i).numpy())
    assert torch.equal(found.maps, expected.maps)


@pytest.mark.parametrize(("returned", "message"), [
    ({"pixel_values": 1}, "preprocess returned a dict"),
    ([1.0], "preprocess returned a list"),
    (np.zeros((3, 32, 32), np.uint8), "preprocess returned a array of uint8"),
    (torch.zeros(1, 3, 32, 32), r"shape \(1, 3, 32, 32\)"),
])  # fmt: skip
def test_other_results_of_preprocess_raise(returned, message):
    with pytest.raises(InputError, match=message):
        explain(Image.new("RGB", (8, 8)), preprocess=lambda _: returned)


def test_preprocess_must_return_one_shape():
    images = [Image.new("RGB", (32, 32)), Image.new("RGB", (48, 32))]
    with pytest.raises(InputError, match="different shapes"):
        explain(images, preprocess=lambda i: torch.zeros(3, i.height, i.width))


# -- preprocessing of Hugging Face checkpoints -------------------------------------------------------------------------


def save_checkpoint(folder, processor=None):
    transformers = pytest.importorskip("transformers")
    config = transformers.ViTConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, image_size=32, patch_size=8,
        num_labels=5,
    )  # fmt: skip
    transformers.ViTForImageClassification(config).save_pretrained(folder)
    if processor is not None:
        getattr(transformers, processor[0])(**processor[1]).save_pretrained(folder)
    return f"hf:{folder}"


SQUARE = {"height": 32, "width": 32}
NORMAL = {"image_mean": [0.1, 0.2, 0.3], "image_std": [0.4, 0.5, 0.6]}


@pytest.mark.parametrize(("processor", "expected"), [
    (("ViTImageProcessor", {"size": SQUARE, "resample": 3, **NORMAL}), (1.0, True, "bicubic")),
    (("CLIPImageProcessor", {"size": {"shortest_edge": 37}, "crop_size": SQUARE, "resample": 2, **NORMAL}),
     (32 / 37, False, "bilinear")),
])  # fmt: skip
def test_preprocessing_comes_from_the_checkpoint(processor, expected, tmp_path, recwarn):
    import transformers

    spec = save_checkpoint(tmp_path, processor)
    loaded = vitrail.load(spec)
    assert not [w for w in recwarn if issubclass(w.category, GuessWarning)]
    preprocess = loaded.preprocess
    assert isinstance(preprocess, Preprocess)
    assert (preprocess.size, preprocess.mean, preprocess.std) == ((32, 32), (0.1, 0.2, 0.3), (0.4, 0.5, 0.6))
    assert (pytest.approx(preprocess.crop), preprocess.squash, preprocess.resample) == expected
    assert not preprocess.guessed
    noise = np.random.default_rng(0).integers(0, 256, (37, 37, 3), dtype=np.uint8)
    own = transformers.AutoImageProcessor.from_pretrained(tmp_path)(Image.fromarray(noise), return_tensors="pt")
    difference = (preprocess(Image.fromarray(noise)) - own["pixel_values"][0]).abs()
    if preprocess.squash:
        assert difference.mean() < 0.02, "Pillow and torchvision round differently"
    found = vitrail.explain(loaded, Image.fromarray(noise), "rollout")
    assert found.manifest()["preprocess"]["origin"] == "the checkpoint's image processor"


def test_processors_without_an_equivalent_are_called_themselves(tmp_path):
    spec = save_checkpoint(tmp_path, ("ViTImageProcessor", {"size": SQUARE, "rescale_factor": 1 / 127.5}))
    loaded = vitrail.load(spec)
    assert not isinstance(loaded.preprocess, Preprocess)
    assert vitrail.explain(loaded, Image.new("RGB", (50, 40), "red"), "rollout").maps.shape == (1, 1, 32, 32)


def test_guessed_preprocessing_warns(tmp_path):
    with pytest.warns(GuessWarning, match="no image processor configuration: its preprocessing is a guess"):
        loaded = vitrail.load(save_checkpoint(tmp_path))
    assert loaded.preprocess.guessed
    with pytest.warns(GuessWarning, match="is a guess"):
        vitrail.explain(loaded.module, Image.new("RGB", (50, 40)), "rollout")


def png_header(width: int, height: int) -> bytes:
    """A PNG file that states a size and holds no pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize("size", [(20_000, 6_000), (60_000, 60_000)])
def test_large_images_are_refused_before_they_are_decoded(tmp_path, size):
    path = tmp_path / "large.png"
    path.write_bytes(png_header(*size))
    with pytest.raises(InputError, match="the limit is 100 million: shrink the image first"):
        open_image(path)


def test_the_limit_of_pillow_is_never_changed(tmp_path):
    path = tmp_path / "small.png"
    Image.new("RGB", (640, 640)).save(path)
    limit, seen = Image.MAX_IMAGE_PIXELS, set()

    def read(_: int) -> None:
        open_image(path)
        seen.add(Image.MAX_IMAGE_PIXELS)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(read, range(80)))
    assert seen == {limit}
    assert limit == Image.MAX_IMAGE_PIXELS


@pytest.mark.parametrize("size", [(300, 4), (5, 700)])
def test_long_strips_of_pixels_are_cropped_while_they_are_resized(size, monkeypatch):
    x, y = np.meshgrid(np.arange(size[0]), np.arange(size[1]))
    pixels = np.stack([3 * x % 256, y * 5 % 256, 9 * (x + y) % 256], -1).astype(np.uint8)
    preprocess = Preprocess((32, 32), (0.5,) * 3, (0.5,) * 3, 0.9, resample="bilinear")
    expected = preprocess(Image.fromarray(pixels))
    sizes, resize = [], Image.Image.resize

    def note(self, size, *rest):
        sizes.append(size)
        return resize(self, size, *rest)

    monkeypatch.setattr(Image.Image, "resize", note)
    monkeypatch.setattr("vitrail.models.preprocess.MAX_PIXELS", 4000)
    found = preprocess(Image.fromarray(pixels))
    assert sizes == [(32, 32)], "no larger image is made"
    assert expected.std() > 0.1
    assert (found - expected).abs().max() <= 2 / 127, "the same pixels, up to rounding"


def test_camera_formats_and_unexpected_errors_of_decoders_are_named(tmp_path, monkeypatch):
    photo = tmp_path / "photo.jpg"
    photo.write_bytes(bytes(4) + b"ftypheic" + bytes(40))
    for content in (None, photo.read_bytes()):
        with pytest.raises(InputError, match=r"photo.jpg is a HEIC file, which is not supported: convert it to JPEG"):
            open_image(photo if content is None else "photo.jpg", content)
    Image.new("RGB", (4, 4)).save(tmp_path / "a.png")

    def fail(_):
        raise struct.error("unpack requires a buffer of 4 bytes")

    monkeypatch.setattr("PIL.PngImagePlugin.PngImageFile.load", fail)
    with pytest.raises(InputError, match=r"a.png cannot be read .unpack requires a buffer of 4 bytes.: the file"):
        open_image(tmp_path / "a.png")
