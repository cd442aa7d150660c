"""Small models of the libraries for tests of targets, with random weights, in float64, and a tokenizer of words."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch import Tensor, nn

from tests.zoo.tiny import add_noise

PIXELS, LABELS = 64, 5
WORDS = ("<pad>", "<s>", "</s>", "<unk>", "a", "dog", "cat", "photo", "of", "red", "bird", "black", "sat", ".")
WIDTH: dict[str, Any] = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48
}  # fmt: skip
VISION = WIDTH | {"image_size": PIXELS, "patch_size": 16}
TEXT = WIDTH | {
    "vocab_size": len(WORDS), "max_position_embeddings": 16, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
DECODER: dict[str, Any] = {
    "d_model": 32, "encoder_layers": 1, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "num_queries": 6,
    "num_labels": LABELS, "use_timm_backbone": False, "use_pretrained_backbone": False, "backbone": None,
}  # fmt: skip


def pixels(count: int = 2) -> Tensor:
    return torch.randn(count, 3, PIXELS, PIXELS, generator=torch.Generator().manual_seed(3), dtype=torch.float64)


def tokenizer() -> Any:
    """A tokenizer of whole words with a start and an end token."""
    special = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    inner = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, special["unk_token"]))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    inner.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)])
    return transformers.PreTrainedTokenizerFast(tokenizer_object=inner, **special)


def backbone(*stages: str) -> Any:
    return transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16, 16, 32], depths=[1, 1, 1, 1], layer_type="basic",
        out_features=list(stages) or ["stage4"],
    )  # fmt: skip


def swin() -> Any:
    return transformers.SwinConfig(
        image_size=PIXELS, patch_size=4, embed_dim=8, depths=[1, 1, 1, 1], num_heads=[2, 2, 2, 2], window_size=2,
        out_features=["stage1", "stage2", "stage3", "stage4"],
    )  # fmt: skip


def _options(name: str) -> dict[str, Any]:
    four = VISION | {"num_hidden_layers": 4, "num_labels": LABELS}
    depth = four | {
        "is_hybrid": False, "backbone_out_indices": [0, 1, 2, 3], "neck_hidden_sizes": [8, 8, 16, 16],
        "fusion_hidden_size": 16, "use_auxiliary_head": False,
    }  # fmt: skip
    both = {"vision_config": VISION, "text_config": TEXT}
    return {
        "Clip": both | {"projection_dim": 16},
        "ClipVision": VISION | {"projection_dim": 16},
        "Siglip": both,
        "Siglip2": {"vision_config": WIDTH | {"patch_size": 8, "num_patches": 16}, "text_config": TEXT},
        "Blip": both | {"image_text_hidden_size": 16},
        "OwlViT": both | {"projection_dim": 32},
        "Owlv2": both | {"projection_dim": 32},
        "Detr": DECODER | {"backbone_config": backbone()},
        "ConditionalDetr": DECODER | {"backbone_config": backbone()},
        "DeformableDetr": DECODER | {
            "backbone_config": backbone("stage2", "stage3", "stage4"), "num_feature_levels": 3
        },
        "RTDetr": {
            "backbone_config": transformers.RTDetrResNetConfig(
                embedding_size=8, hidden_sizes=[8, 16, 16, 32], depths=[1, 1, 1, 1], layer_type="basic",
                out_features=["stage2", "stage3", "stage4"],
            ), "encoder_hidden_dim": 32, "encoder_in_channels": [16, 16, 32], "encoder_ffn_dim": 48, "d_model": 32,
            "num_queries": 6, "decoder_layers": 2, "decoder_ffn_dim": 48, "decoder_attention_heads": 4,
            "encoder_attention_heads": 4, "decoder_in_channels": [32, 32, 32], "num_labels": LABELS,
        },
        "Yolos": VISION | {"image_size": (PIXELS, PIXELS), "num_detection_tokens": 6, "num_labels": LABELS},
        "GroundingDino": DECODER | {
            "backbone_config": transformers.SwinConfig(
                image_size=PIXELS, patch_size=4, embed_dim=8, depths=[1, 1, 1], num_heads=[2, 2, 2], window_size=4,
                out_features=["stage1", "stage2", "stage3"],
            ), "text_config": transformers.BertConfig(**TEXT), "num_feature_levels": 3, "max_text_len": 16,
        },
        "Segformer": {
            "num_encoder_blocks": 4, "depths": [1, 1, 1, 1], "hidden_sizes": [8, 16, 16, 32],
            "num_attention_heads": [1, 2, 2, 4], "decoder_hidden_size": 16, "num_labels": LABELS,
        },
        "Beit": four | {"out_indices": [1, 2, 3, 4], "use_auxiliary_head": False, "pool_scales": [1, 2]},
        "DPT": depth,
        "Mask2Former": {
            "backbone_config": swin(), "feature_size": 32, "mask_feature_size": 32, "hidden_dim": 32,
            "encoder_feedforward_dim": 48, "encoder_layers": 1, "decoder_layers": 3, "num_attention_heads": 4,
            "dim_feedforward": 48, "num_queries": 6, "num_labels": LABELS,
        },
        "MaskFormer": {
            "backbone_config": swin(), "decoder_config": transformers.DetrConfig(**DECODER), "fpn_feature_size": 32,
            "mask_feature_size": 32, "num_labels": LABELS,
        },
    }[name]  # fmt: skip


@cache
def build(model: str, config: str) -> nn.Module:
    """A model of transformers with random weights; call it with the names without "ForX" and "Config"."""
    torch.manual_seed(0)
    options = _options(config)
    named = {"Clip": "CLIPConfig", "ClipVision": "CLIPVisionConfig"}
    kind = getattr(transformers, named.get(config, f"{config}Config"))
    module: nn.Module = add_noise(getattr(transformers, model)(kind(**options)))
    return module.double().eval()
