"""Image classifiers of transformers, torchvision and open_clip."""

from __future__ import annotations

from functools import partial

from tests.zoo.entry import INPUT_METHODS, Entry
from tests.zoo.tiny import tiny

#: Plain vision transformers of transformers: library, family, class where a family has several.
PLAIN = [
    "beit",
    "clip",
    "data2vec-vision",
    "dinov2",
    "dinov2_with_registers",
    "ijepa",
    "metaclip_2",
    "siglip",
    "timm_wrapper",
    "vit",
    "vit_msn",
]
#: Why methods on attention do not apply.
WINDOWS = "attends inside windows"
PYRAMID = "changes its number of tokens"
NONE = "no attention that was recognised"
OTHERS = {
    "bit": NONE, "convnext": NONE, "convnextv2": NONE, "cvt": PYRAMID, "donut-swin": WINDOWS, "focalnet": NONE,
    "hiera": WINDOWS, "mobilenet_v2": NONE, "mobilevitv2": NONE, "poolformer": NONE, "pvt": PYRAMID, "pvt_v2": PYRAMID,
    "regnet": NONE, "resnet": NONE, "segformer": PYRAMID, "swiftformer": NONE, "swin": WINDOWS, "swinv2": WINDOWS,
}  # fmt: skip
TORCHVISION = {
    "alexnet": NONE, "convnext_tiny": NONE, "maxvit": WINDOWS, "mobilenet_v3_small": NONE, "resnet18": NONE,
    "squeezenet1_1": NONE, "swin": WINDOWS, "swin_v2": WINDOWS,
}  # fmt: skip
OPEN_CLIP = ("vit", "vit mean", "vit no pre-norm", "vit final norm after pool", "vit LayerScale", "timm vit")
#: Probabilities of mobilevitv2 are 0 and 1; patches of modified resnet are larger than the one that a known answer
#: plants.
METHODS = {
    "mobilevitv2": ("gradient_x_input",),
    "modified resnet": ("gradient_x_input", "integrated_gradients:steps=4"),
}  # fmt: skip
FAST = {"vit", "dinov2_with_registers", "siglip", "swin", "resnet"}


def plain(library: str, name: str, model: str = "") -> Entry:
    build = partial(tiny, library, "vision", name, model)
    slow = library == "transformers" and name not in FAST
    return Entry(f"{library}:{model or name}", build, ("swap_patches",), slow=slow)


def other(library: str, name: str, reason: str, refused: str = "rollout") -> Entry:
    build = partial(tiny, library, "vision", name)
    return Entry(
        f"{library}:{name}", build, ("plant_patch", "permute_examples"), METHODS.get(name, INPUT_METHODS),
        {refused: reason},
        slow=library == "torchvision" or name not in FAST,
    )  # fmt: skip


ENTRIES = [
    *(plain("transformers", name) for name in PLAIN),
    plain("transformers", "deit", "DeiTForImageClassification"),
    plain("transformers", "deit", "DeiTForImageClassificationWithTeacher"),
    *(other("transformers", name, reason) for name, reason in OTHERS.items()),
    plain("torchvision", "vit"),
    *(other("torchvision", name, reason) for name, reason in TORCHVISION.items()),
    *(plain("open_clip", name) for name in OPEN_CLIP),
    other("open_clip", "modified resnet", "no such pair of sums", refused="leadlight"),
]
