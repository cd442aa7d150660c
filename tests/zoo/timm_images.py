"""Image classifiers of timm, cut to two blocks where their size is an option."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import nn

from tests.zoo.entry import INPUT_METHODS, METHODS, WITHOUT_LEADLIGHT, Entry, Subject
from tests.zoo.images import NONE, PYRAMID, WINDOWS
from tests.zoo.tiny import add_noise, in_double

#: Models whose number of blocks is no option.
UNCUT = {"nest_tiny", "mixer_s32_224", "resmlp_12_224", "gmlp_ti16_224"}
NARROW = {"embed_dim": 48, "num_heads": 4, "depth": 2}


def subject(name: str, patch: int, size: tuple[int, int], options: Mapping[str, Any]) -> Subject:
    """A model with random weights and two images."""
    import timm

    torch.manual_seed(0)
    model = timm.create_model(name, num_classes=5, **options)
    if name in UNCUT:
        cut_blocks(model)
    add_noise(model)
    images = torch.randn(2, 3, *size, generator=torch.Generator().manual_seed(3))
    return in_double(Subject(model, images, 1, grid=(size[0] // patch, size[1] // patch)))


def cut_blocks(model: nn.Module) -> None:
    """Keep the first two blocks, or the first block of each level."""
    if hasattr(model, "levels"):
        for level in model.levels:
            level.transformer_encoder = level.transformer_encoder[:1]
    else:
        model.blocks = model.blocks[:2]


def plain(
    name: str,
    patch: int = 16,
    size: tuple[int, int] = (64, 64),
    label: str = "",
    methods: tuple[str, ...] = METHODS,
    **options: Any,
) -> Entry:
    options = NARROW | {"img_size": size} | options
    build = partial(subject, name, patch, size, options)
    return Entry(f"timm:{label or name}", build, ("swap_patches",), methods, slow=name not in FAST)


def other(name: str, reason: str, size: int = 64, pending: Mapping[str, str] | None = None, **options: Any) -> Entry:
    build = partial(subject, name, 16, (size, size), options)
    methods = INPUT_METHODS if size == 64 else ("gradient_x_input",)
    return Entry(
        f"timm:{name}", build, ("plant_patch", "permute_examples"), methods, {"rollout": reason}, slow=True,
        pending=pending or {},
    )  # fmt: skip


FAST = {"vit_tiny_patch16_224", "deit_tiny_distilled_patch16_224", "vit_base_patch16_siglip_224"}
ENTRIES = [
    plain("vit_tiny_patch16_224"),
    plain("vit_tiny_patch16_224", size=(48, 80), label="vit_not_square"),
    plain("vit_tiny_patch16_224", 8, (32, 32), "vit_patch_8", patch_size=8),
    plain("vit_tiny_patch16_224", label="vit_mean", global_pool="avg", class_token=False),
    plain("vit_tiny_patch16_224", label="vit_max_pool", global_pool="max"),
    plain("vit_tiny_patch16_224", label="vit_average_and_max", global_pool="avgmax"),
    plain("vit_tiny_patch16_224", label="vit_registers", reg_tokens=4),
    plain("vit_tiny_patch16_224", label="vit_query_norms", qk_norm=True),
    plain("vit_tiny_patch16_224", label="vit_dynamic_size", dynamic_img_size=True, size=(32, 96)),
    plain("deit_tiny_patch16_224"),
    plain("deit_tiny_distilled_patch16_224"),
    plain("deit3_small_patch16_224"),
    plain("beit_base_patch16_224"),
    plain("beitv2_base_patch16_224"),
    plain("eva02_tiny_patch14_224", 14, (56, 56)),
    plain("eva_large_patch14_196", 14, (56, 56)),
    plain("vit_small_patch14_dinov2", 14, (56, 56)),
    plain("vit_small_patch14_reg4_dinov2", 14, (56, 56)),
    plain("vit_small_patch16_dinov3"),
    plain("vit_small_patch16_rope_224"),
    plain("vit_small_patch16_rope_ape_224"),
    plain("vit_srelpos_small_patch16_224"),
    plain("vit_relpos_small_patch16_224"),
    plain("vit_base_patch16_siglip_224"),
    plain("vit_base_patch16_siglip_gap_224"),
    plain("vit_base_patch16_clip_quickgelu_224"),
    plain("vit_base_patch16_rpn_224", methods=WITHOUT_LEADLIGHT),
    plain("vit_medium_patch16_gap_256"),
    plain("vit_wee_patch16_reg1_gap_256"),
    plain("flexivit_small"),
    plain("aimv2_large_patch14_224", 14, (56, 56)),
    other("convit_tiny", "attention", img_size=64, **NARROW),
    other("xcit_nano_12_p8_224", "attention", depth=2),
    other("cait_xxs24_224", "class-attention", img_size=64, depth=2),
    other(
        "crossvit_tiny_240",
        "class-attention",
        size=120,  # of the sizes that both patch sizes divide, the smallest
        img_size=120,
        depth=[[1, 1, 0], [1, 1, 0]],
        embed_dim=(24, 48),
        num_heads=(2, 2),
    ),
    other("pit_ti_224", PYRAMID, img_size=64, depth=(1, 1, 1)),
    other("levit_128s", PYRAMID, img_size=64, embed_dim=(24, 32, 48), key_dim=8, num_heads=(2, 2, 4), depth=(1, 1, 1)),
    other("pvt_v2_b0", PYRAMID, depths=(1, 1, 1, 1), embed_dims=(8, 16, 24, 32), num_heads=(1, 2, 2, 4)),
    other(
        "swin_tiny_patch4_window7_224",
        WINDOWS,
        img_size=64,
        window_size=4,
        embed_dim=24,
        depths=(2, 2),
        num_heads=(2, 4),
    ),
    other(
        "swinv2_tiny_window8_256", WINDOWS, img_size=64, window_size=4, embed_dim=24, depths=(2, 2), num_heads=(2, 4)
    ),
    other("hiera_tiny_224", WINDOWS, img_size=64, embed_dim=24, stages=(1, 1, 1, 1)),
    other(
        "samvit_base_patch16_224",
        WINDOWS,
        img_size=64,
        embed_dim=32,
        depth=2,
        num_heads=4,
        window_size=2,
        global_attn_indexes=(1,),
    ),
    other("nest_tiny", WINDOWS, img_size=64),
    other("mobilevit_xxs", WINDOWS),
    other("mixer_s32_224", NONE, img_size=64),
    other("resmlp_12_224", NONE, img_size=64),
    other("gmlp_ti16_224", NONE, img_size=64),
    other("test_convnext", NONE),
    other("test_resnet", NONE),
    other("test_efficientnet", NONE),
]
