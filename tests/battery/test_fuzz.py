"""Arbitrary inputs, targets and options give finite maps of the right shape or raise a `VitrailError`."""

import os
import tempfile
import warnings
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

import vitrail
from vitrail.errors import VitrailError
from vitrail.methods import METHODS
from vitrail.models import LoadedModel
from vitrail.models.preprocess import Preprocess
from vitrail.testing import tiny_vit

SIZE, CLASSES = 32, 5
DTYPES = [
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.uint8,
    torch.int64,
    torch.bool,
    torch.complex64,
]
MODES = ["1", "L", "P", "RGB", "RGBA", "LA", "PA", "CMYK", "YCbCr", "HSV", "LAB", "I", "I;16", "F"]


@cache
def model():
    names = tuple(f"class {i}, thing {i}" for i in range(CLASSES))
    return LoadedModel(tiny_vit().eval(), Preprocess((SIZE, SIZE), (0.5,) * 3, (0.5,) * 3, 1.0), names, "tiny")


@cache
def folder():
    root = Path(tempfile.mkdtemp(prefix="vitrail-fuzz-"))
    Image.new("RGB", (20, 30), "red").save(root / "red.png")
    Image.fromarray(np.linspace(-1, 2, 64, dtype=np.float32).reshape(8, 8)).save(root / "float.tiff")
    Image.fromarray(np.arange(64, dtype=np.uint16).reshape(8, 8)).save(root / "16-bit.png")
    (root / "text.jpg").write_text("not an image")
    (root / "empty.png").write_bytes(b"")
    return root


def check(inputs, explained=None, **options):
    """Explain, and check the maps of a result."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            found = vitrail.explain(explained or model(), inputs, **options)
        except VitrailError:
            return
    explanation = next(iter(found.values())) if "methods" in options else found
    assert isinstance(explanation, vitrail.Explanation)
    maps = explanation.maps
    assert maps.dim() == 4
    assert maps.shape[0] >= 1
    assert maps.shape[1] >= 1
    assert tuple(maps.shape[2:]) == tuple(explanation.images.shape[2:])
    assert maps.dtype == torch.float32
    assert bool(torch.isfinite(maps).all())
    assert float(maps.abs().max()) <= 1 + 1e-5


# -- inputs ------------------------------------------------------------------------------------------------------------

shapes = st.one_of(
    st.just((1, 3, SIZE, SIZE)),
    st.just((3, SIZE, SIZE)),
    st.tuples(st.integers(0, 2), st.sampled_from([0, 1, 3, 4]), *[st.sampled_from([0, 1, 8, 31, SIZE, 40])] * 2),
    st.lists(st.integers(0, 9), max_size=5).map(tuple),
)
numbers = st.one_of(st.sampled_from([0.0, 1.0, -1.0, 255.0, 1e30, float("nan"), float("inf")]), st.floats(-3, 3))


@st.composite
def tensors(draw):
    shape, seed = draw(shapes), draw(st.integers(0, 99))
    tensor = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    if tensor.numel() and draw(st.booleans()):
        tensor.view(-1)[0] = draw(numbers)
    return tensor.nan_to_num().to(draw(st.sampled_from(DTYPES))) if draw(st.booleans()) else tensor


@st.composite
def images(draw):
    size = draw(st.tuples(st.integers(0, 40), st.integers(0, 40)))
    mode = draw(st.sampled_from(MODES))
    if mode == "F":
        return Image.new(mode, size, draw(numbers))
    return Image.new(mode, size, draw(st.sampled_from([0, 1, 200, 70000]))) if mode == "I" else Image.new(mode, size)


paths = st.one_of(
    st.sampled_from(["red.png", "float.tiff", "16-bit.png", "text.jpg", "empty.png", "missing.png", ""]).map(
        lambda name: folder() / name
    ),
    st.text(max_size=12),
    st.sampled_from(["\0", "a" * 300, "\ud800", "~", ".", "/", "https://example.org/cat.jpg"]),
)
scraps = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.binary(max_size=4), st.just(object()), st.just(int),
    st.just(...), st.just(Image.Image), st.complex_numbers(), st.just(range(3)), st.just(iter(())),
)  # fmt: skip
single_inputs = st.one_of(
    tensors(),
    tensors().map(lambda t: t.to(torch.float32).numpy() if not t.is_complex() else t.numpy()),
    images(),
    paths,
    scraps,
)
inputs = st.one_of(
    single_inputs,
    st.integers(1, 3).map(lambda n: torch.linspace(-1, 1, n * 3 * SIZE * SIZE).view(n, 3, SIZE, SIZE).sin()),
    st.lists(st.sampled_from(["red.png", "16-bit.png"]).map(lambda name: folder() / name), min_size=1, max_size=3),
    st.lists(single_inputs, max_size=3),
    st.lists(images(), max_size=3),
    st.lists(tensors(), max_size=3),
    st.lists(single_inputs, max_size=2).map(tuple),
    st.lists(st.lists(st.floats(-1, 1), max_size=2), max_size=2),
    st.dictionaries(st.sampled_from(["x", "images", "pixel_values", "input_ids"]), single_inputs, max_size=2),
    st.sets(st.integers(), max_size=2),
)

# -- targets -----------------------------------------------------------------------------------------------------------

classes = st.one_of(
    st.integers(-2, CLASSES + 1), st.integers(),
    st.sampled_from(["class 1", "thing 2", "thing", "top2", "top0", "top", "٣", "²", "9" * 5000]),

    st.integers(0, CLASSES - 1).map(np.int64), st.integers(0, CLASSES - 1).map(torch.tensor), st.text(max_size=4),
)  # fmt: skip
targets = st.one_of(
    st.none(),
    classes,
    scraps,
    st.lists(classes, max_size=3),
    st.lists(st.integers(0, CLASSES - 1), min_size=2, max_size=2),
    st.lists(st.lists(st.one_of(st.integers(0, CLASSES - 1), classes), max_size=2), max_size=3),
    st.lists(st.one_of(classes, scraps), max_size=2).map(tuple),
    st.lists(st.integers(-1, CLASSES), max_size=3).map(np.array),
    st.lists(st.integers(-1, CLASSES), max_size=3).map(torch.tensor),
    st.dictionaries(st.integers(0, 2), st.integers(0, 2), max_size=1),
    tensors(),
    st.sampled_from([
        lambda o: o[:, 0], lambda o: o, lambda o: o[:, :0], lambda o: o.sum(), lambda o: 3, lambda o: None,
        lambda o: o.detach()[:, 0], lambda o: o.argmax(1), lambda o: o[:, :2] > 0, lambda o: torch.zeros(len(o)),
    ]),
)  # fmt: skip

# -- methods and options -----------------------------------------------------------------------------------------------

values = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 6), st.floats(), st.text(max_size=4),
    st.sampled_from(["mean", "max", "min", "logit", "prob", "logprob", "relu", "positive", "all"]),
    st.just([]), st.just(object()),
)  # fmt: skip


@st.composite
def calls(draw):
    name = draw(st.sampled_from(list(METHODS)))
    options = dict(METHODS[name].quick)
    names = list(METHODS[name].options) or ["unknown"]
    for option in draw(st.lists(st.sampled_from(names), max_size=2, unique=True)):
        options[option] = draw(st.one_of(values, st.just(METHODS[name].options.get(option)), st.integers(0, 2)))
    if draw(st.integers(0, 19)) == 0:
        options["unknown"] = 1
    return name, options


# -- inputs and outputs of several tensors -----------------------------------------------------------------------------


class Several(torch.nn.Module):
    """A model of an image and something else, whose output has several parts."""

    def __init__(self):
        super().__init__()
        self.vit, self.num_classes = tiny_vit(), CLASSES

    def forward(self, image, text=None, mask=None, **others):  # noqa: ARG002 - they are taken and have no effect
        logits = self.vit(image)
        if text is not None:
            rows = text.dim() == 2 and text.is_floating_point()
            logits = logits * text[:, :1] if rows else logits + text.float().mean()
        return {"features": logits.repeat(1, 2), "logits": logits, "boxes": logits[:, None, :4].sigmoid()}


@cache
def several():
    return Several().eval()


parts = st.one_of(tensors(), st.just(torch.ones(2, 7).long()), st.just(torch.rand(2, 4)), scraps)
image_pair = st.just(torch.linspace(-1, 1, 2 * 3 * SIZE * SIZE).view(2, 3, SIZE, SIZE).sin())
names = st.sampled_from(["image", "text", "mask", "input_ids", "pixel_values", "[0]", "boxes", "logits", ""])
roles = st.one_of(
    st.none(), scraps,
    st.dictionaries(names, st.one_of(st.sampled_from(["image", "tokens", "shared", "mask"]), scraps), max_size=2),
)  # fmt: skip
outputs = st.one_of(st.none(), names, st.integers(-4, 4), scraps, st.just(lambda output: output["logits"]))
score_functions = st.one_of(st.none(), st.sampled_from(["softmax", "sigmoid", "identity", "tanh"]), scraps)


def any_call(image, text, form, target, name, reading):
    if form == "dict":
        given = {"text": text, "image": image}
    elif form == "tuple":
        given = (image, text)
    else:
        given = {"image": image, "text": text, "mask": torch.ones(2, 7).bool(), "number": 3}
    check(given, target=target, method=name, explained=several(), **reading, **METHODS[name].quick)


def sometimes(examples):
    return settings(
        max_examples=examples, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck), database=None
    )


def any_input(inputs, name, size):
    check(inputs, method=name, batch_size=size)


def any_target(images, target, name, size):
    check(
        torch.linspace(-1, 1, images * 3 * SIZE * SIZE).view(images, 3, SIZE, SIZE).sin(),
        target=target,
        method=name,
        batch_size=size,
    )


def any_option(call, keep):
    name, options = call
    check(torch.linspace(-1, 1, 3 * SIZE * SIZE).view(1, 3, SIZE, SIZE).sin(), methods={name: options}, keep=keep)


sizes = st.one_of(st.none(), st.integers(1, 3), st.integers(-1, 3))
FAST = ["gradtoken", "rollout", "vtranm", "raw_attention"]
some_methods = st.sampled_from(FAST)
any_input.strategies = {"inputs": inputs, "name": some_methods, "size": sizes}
any_target.strategies = {"images": st.integers(1, 3), "target": targets, "name": some_methods, "size": sizes}
any_option.strategies = {"call": calls(), "keep": st.booleans()}
any_call.strategies = {
    "image": st.one_of(image_pair, image_pair, parts),
    "text": parts,
    "form": st.sampled_from(["dict", "tuple", "more"]),
    "target": st.one_of(st.none(), st.integers(0, CLASSES), targets),
    "name": st.sampled_from([*FAST, "occlusion", "attnlrp", "shapley", "gradient_x_input"]),
    "reading": st.fixed_dictionaries(
        {},
        optional={
            "roles": roles,
            "of": st.one_of(st.none(), names, scraps),
            "output": outputs,
            "scores": score_functions,
        },
    ),
}
PROPERTIES = [any_input, any_target, any_option, any_call]
#: Calls of each property in the long run; 3,000 calls in all by VITRAIL_FUZZ=750.
LONG = int(os.environ.get("VITRAIL_FUZZ", "400"))


@pytest.mark.parametrize("holds", PROPERTIES, ids=lambda f: f.__name__)
def test_maps_or_error(holds):
    sometimes(70)(given(**holds.strategies)(holds))()


@pytest.mark.slow
@pytest.mark.exhaustive  # test_maps_or_error has fewer calls of each property
@pytest.mark.parametrize("holds", PROPERTIES, ids=lambda f: f.__name__)
def test_maps_or_error_with_many_examples(holds):
    sometimes(LONG)(given(**holds.strategies)(holds))()
