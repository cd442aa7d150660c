"""The smallest model of each family in timm that has attention modules, at half the usual resolution."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

import timm
import torch
from timm.models import list_models, model_entrypoint
from torch import Tensor, nn

SMALL_SIZE = 112
#: Class names of attention modules.
ATTENTION_NAMES = re.compile("Atte?n|atte?n|MHSA|GPSA|Lsa|XCA|SRA")
#: Files of timm whose models differ in more than their size.
MIXED_FILES = frozenset({"vision_transformer", "vision_transformer_sam", "eva"})
#: Words and numbers in a model name that denote a size, not a family.
SIZE_WORDS = re.compile(
    r"(?<![a-z0-9])(patch[0-9]+|test|nano|pico|femto|atto|wee|pwee|dwee|dpwee|tiny|mini|little|dlittle|small|xsmall|"
    r"medium|mediumd|betwixt|base|large|huge|giant|giantopt|gigantic|enormous|xlarge|so150m2?|so400m|[tsmblhg]|xs|xxs|"
    r"[0-9]+[a-z]?[0-9]*)(?![a-z0-9])"
)


def smallest_models(limit: float, only: Collection[str] = ()) -> Iterator[tuple[str, str]]:
    """Family and name of each family's smallest model up to a limit in millions, or of those named; by size."""
    found = [(_parameter_count(name), _family(name)[1], name) for name in list_models() if name in only]
    families: dict[tuple[str, str], list[str]] = {}
    for name in list_models():
        families.setdefault(_family(name), []).append(name)
    for (_, family), names in families.items():
        if only and family not in only:
            continue
        sizes = sorted((size, name) for name in names if (size := _parameter_count(name)))
        if sizes and sizes[0][0] <= limit * 1e6:
            found.append((sizes[0][0], family, sizes[0][1]))
    yield from ((family, name) for size, family, name in sorted(found) if size)


def _family(name: str) -> tuple[str, str]:
    """File and family of a model: the first word of its name, or in files of many kinds the name without its size."""
    words = SIZE_WORDS.sub("", name.replace("_", " ")).split()
    file = model_entrypoint(name).__module__.rpartition(".")[2]
    return file, ("_".join(words) if file in MIXED_FILES else words[0] if words else name)


def _parameter_count(name: str) -> int:
    """Number of parameters; 0 if the model cannot be made or no module is named like an attention."""
    try:
        with torch.device("meta"):
            model = timm.create_model(name)
    except Exception:  # noqa: BLE001 - some entry points need weights, other libraries or a real device
        return 0
    names = " ".join(type(m).__name__ for m in model.modules())
    return sum(p.numel() for p in model.parameters()) if ATTENTION_NAMES.search(names) else 0


def make_model(name: str, classes: int) -> tuple[nn.Module, Tensor]:
    """Model with random weights, made for small images if it supports that, and one image of noise."""
    try:
        model = timm.create_model(name, num_classes=classes, img_size=SMALL_SIZE).eval()
        image = torch.randn(1, 3, SMALL_SIZE, SMALL_SIZE)
        with torch.no_grad():
            model(image)
    except Exception:  # noqa: BLE001 - families that reject img_size are made with their defaults
        model = timm.create_model(name, num_classes=classes).eval()
        image = torch.randn(1, *model.pretrained_cfg.get("input_size", (3, 224, 224)))
    return model, image
