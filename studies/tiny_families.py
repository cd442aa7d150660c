"""Tiny models with random weights of the classifier families in transformers, torchvision, open_clip and timm."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

CLASSES, PIXELS, VOCABULARY, LENGTH = 5, 64, 120, 16
PAD, BEGIN, END = 0, 1, 2
#: Upper limits of a configuration's integers, by name.
TINY = {
    **dict.fromkeys(
        ("hidden_size", "d_model", "n_embd", "dim", "emb_dim", "embed_dim", "embedding_size", "word_embed_proj_dim",
         "d_latents", "true_hidden_size", "intra_bottleneck_size", "projection_dim", "decoder_hidden_size",
         "input_embedding_size", "output_embedding_size", "entity_emb_size", "attention_hidden_size"), 32),
    **dict.fromkeys(
        ("intermediate_size", "encoder_ffn_dim", "decoder_ffn_dim", "d_ff", "dff", "d_inner", "ffn_dim",
         "ffn_hidden_size", "hidden_dim", "feed_forward_size", "moe_intermediate_size", "max_position_embeddings",
         "n_positions", "max_seq_len", "shared_expert_intermediate_size", "original_max_position_embeddings"), 64),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers"), 3),
    **dict.fromkeys(("num_layers", "encoder_layers", "decoder_layers", "num_decoder_layers",
                     "num_self_attends_per_block", "num_experts_per_tok", "num_key_value_heads", "moe_topk",
                     "num_feedforward_networks"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads",
                     "decoder_attention_heads", "num_self_attention_heads", "num_experts", "num_local_experts",
                     "n_routed_experts", "window_size", "rotary_dim", "linear_num_key_heads", "linear_num_value_heads",
                     "n_mamba_heads", "index_n_heads"), 4),
    **dict.fromkeys(("num_kv_heads", "n_group", "topk_group", "first_k_dense_replace", "num_hidden_groups"), 1),
    **dict.fromkeys(("head_dim", "d_kv", "d_head", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim", "kv_channels",
                     "linear_key_head_dim", "linear_value_head_dim", "attention_head_size", "sliding_window",
                     "attention_window", "mamba_d_state", "num_latents", "local_attention", "index_head_dim",
                     "index_topk", "attention_head_dim", "mamba_dt_rank", "gated_norm_rank"), 8),
    **dict.fromkeys(("kv_lora_rank", "q_lora_rank", "qk_head_dim", "query_pre_attn_scalar", "num_hash_buckets",
                     "block_size", "coordinate_size", "shape_size"), 16),
    "image_size": PIXELS, "patch_size": 16,
}  # fmt: skip
#: Lists with one entry per stage, cut to the number of stages of the model.
STAGES: dict[str, list[Any]] = {
    "hidden_sizes": [16, 32, 32, 64, 64], "depths": [2, 2, 1, 1], "num_heads": [1, 2, 4, 4],
    "num_attention_heads": [1, 2, 4, 4], "embed_dims": [16, 32, 32, 64], "embed_dim": [16, 32, 32, 64],
    "depth": [1, 1, 2, 1], "block_sizes": [1, 1, 1, 1], "n_attn_blocks": [1, 1, 1, 1],
    "image_size": [PIXELS, PIXELS],
}  # fmt: skip
#: Options that the rules above get wrong, by model type.
OVERRIDES: dict[str, dict[str, Any]] = {
    "bit": {"num_groups": 4},
    "cohere_compass_text": {"rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 1e4}}},
    "cvt": {"depth": [1, 2, 3]},
    "esm": {"mask_token_id": 4},
    "esmc": {"num_key_value_heads": 4},
    "hgnet_v2": {"hidden_sizes": [256, 512, 1024, 2048]},
    "hunyuan_v1_dense": {"head_dim": 8},
    "hunyuan_v1_moe": {"head_dim": 8},
    "luke": {"entity_vocab_size": 50},
    "ministral": {"head_dim": 8},
    "mistral4": {"head_dim": 16},
    "nemotron": {"head_dim": 8, "num_key_value_heads": 2},
    "qwen3_5": {"text_config": {"num_hidden_layers": 4}},
    "qwen3_5_text": {"num_hidden_layers": 4},
    "qwen3_next": {"num_hidden_layers": 4},
    "textnet": {"stem_out_channels": 16},
    "t5": {"decoder_start_token_id": PAD},
    "deberta": {"relative_attention": True, "pos_att_type": ["c2p", "p2c"]},
    "deberta-v2": {"relative_attention": True, "pos_att_type": ["c2p", "p2c"]},
    "deepseek_v2": {"num_experts_per_tok": 2},
    "efficientnet": {"width_coefficient": 0.25, "depth_coefficient": 0.3, "hidden_dim": 320},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "num_layers": 2},
    "hiera": {"embed_dim": 16, "depths": [1, 1, 1], "num_heads": [1, 2, 4], "masked_unit_size": [4, 4],
              "num_query_pool": 2, "masked_unit_attention": [True, False, False]},
    "imagegpt": {"vocab_size": VOCABULARY + 1, "n_positions": LENGTH},
    "jamba": {"num_hidden_layers": 4, "attn_layer_period": 2, "attn_layer_offset": 1, "use_mamba_kernels": False},
    "layoutlmv3": {"coordinate_size": 6, "shape_size": 4, "input_size": PIXELS},
    "lilt": {"hidden_size": 48, "channel_shrink_ratio": 2},
    "levit": {"hidden_sizes": [32, 64, 96], "num_attention_heads": [2, 4, 6], "depths": [1, 1, 1]},
    "mobilevit": {"hidden_sizes": [32, 48, 64], "neck_hidden_sizes": [8, 16, 16, 32, 32, 32, 64]},
    "perceiver": {"image_size": 16, "num_blocks": 1, "num_cross_attention_heads": 1},
    "reformer": {"axial_pos_embds": False, "attn_layers": ["local", "lsh"], "lsh_attn_chunk_length": 8,
                 "local_attn_chunk_length": 8, "num_buckets": 2, "num_hidden_layers": 2,
                 "is_decoder": False},
    "regnet": {"groups_width": 8},
    "roc_bert": {"pronunciation_embed_dim": 16, "pronunciation_vocab_size": 50, "shape_embed_dim": 16,
                 "shape_vocab_size": 50},
    "swin": {"depths": [2, 2], "num_heads": [2, 4]},
    "swinv2": {"depths": [2, 2], "num_heads": [2, 4], "pretrained_window_sizes": [0, 0]},
    "donut-swin": {"depths": [2, 2], "num_heads": [2, 4]},
    "timm_wrapper": {"architecture": "test_vit", "model_args": {"img_size": PIXELS}, "do_pooling": True},
    "xmod": {"default_language": "en_XX"},
    "zamba": {"attention_hidden_size": 64, "attention_head_dim": 16, "num_hidden_layers": 6,
              "attn_layer_period": 2, "attn_layer_offset": 1, "use_mamba_kernels": False},
    "zamba2": {"num_hidden_layers": 4, "layers_block_type": ["mamba", "hybrid", "mamba", "hybrid"],
               "use_mamba_kernels": False, "n_mamba_heads": 8, "mamba_headdim": 8, "mamba_ngroups": 1,
               "attention_hidden_size": 64, "attention_head_dim": 16},
}  # fmt: skip
#: Families that are not built, with the reason.
LEFT_OUT = {
    "shieldgemma2": "generates text and has no class scores",
    "layoutlmv2": "needs detectron2",
}


@dataclass(frozen=True)
class Family:
    """A family of models.

    Attributes:
        library: "transformers", "torchvision", "open_clip" or "timm".
        task: "vision" or "text".
        name: The model type of transformers, or the model's name.
        model: The model's class.
    """

    library: str
    task: str
    name: str
    model: str


@dataclass(frozen=True)
class TinyModel:
    """A model in evaluation mode and its inputs.

    Attributes:
        module: The model.
        inputs: One input, as keyword arguments or as a tensor of images.
        target: The class to explain, or a function for models without classes.
        padded: For text models: two texts, the second one shorter and padded on the right.
        seq2seq: Whether it is an encoder with a decoder.
    """

    module: nn.Module
    inputs: Any
    target: Any = 3
    padded: dict[str, Tensor] = field(default_factory=dict)
    seq2seq: bool = False


def families(library: str | None = None, only: Collection[str] = (), millions: float = 90.0) -> Iterator[Family]:
    """List every family of the installed libraries; those of timm only if asked for, as all its models are made."""
    if library == "timm":
        from timm_families import smallest_models

        yield from (Family("timm", "vision", family, name) for family, name in smallest_models(millions, only))
    if library in (None, "transformers"):
        auto = importlib.import_module("transformers.models.auto.modeling_auto")
        for task, names in (
            ("vision", auto.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES),
            ("text", auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES),
        ):
            for name, classes in names.items():
                for model in (classes,) if isinstance(classes, str) else classes:
                    yield Family("transformers", task, name, model)
    for other, builders in (("torchvision", TORCHVISION), ("open_clip", OPEN_CLIP)):
        if library in (None, other) and importlib.util.find_spec(other) is not None:
            for name in builders:
                yield Family(other, "vision", name, name)


def build(family: Family) -> TinyModel:
    """Build a tiny model with random weights, and its inputs."""
    torch.manual_seed(0)
    if family.library == "torchvision":
        pixels = 96 if family.name == "inception_v3" else PIXELS
        return TinyModel(TORCHVISION[family.name](family.name).eval(), torch.randn(1, 3, pixels, pixels))
    if family.library == "timm":
        from timm_families import make_model

        return TinyModel(*make_model(family.model, CLASSES))
    if family.library == "open_clip":
        return TinyModel(_open_clip(**OPEN_CLIP[family.name]).eval(), torch.randn(1, 3, PIXELS, PIXELS), third_feature)
    import transformers
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    if family.name in LEFT_OUT:
        raise NotImplementedError(LEFT_OUT[family.name])
    config_class = CONFIG_MAPPING[family.name]
    options = shrink(config_class) | {"num_labels": CLASSES}
    for name, value in OVERRIDES.get(family.name, {}).items():
        options[name] = {**options.get(name, {}), **value} if isinstance(value, dict) else value
    if family.task == "text":
        options |= SPECIAL
    config = config_class(**options)
    if family.task == "text":
        for sub in ("text_config", "decoder", "encoder"):
            if hasattr(getattr(config, sub, None), "pad_token_id"):
                getattr(config, sub).pad_token_id = PAD
    module = getattr(transformers, family.model)(config).float().eval()
    if family.task == "text":
        inputs, padded = texts()
        return TinyModel(module, inputs, 3, padded, bool(getattr(config, "is_encoder_decoder", False)))
    return TinyModel(module, _image_inputs(family, config))


#: Ids of the special tokens.
SPECIAL = {"pad_token_id": PAD, "bos_token_id": BEGIN, "eos_token_id": END}


def shrink(config_class: Any) -> dict[str, Any]:
    """Options that make a configuration tiny, from the names and defaults of its attributes."""
    default = config_class()
    options: dict[str, Any] = {}
    for name, value in default.to_dict().items():
        own = getattr(default, name, value)
        if hasattr(own, "to_dict"):
            options[name] = shrink(type(own))
            if "vocab_size" in options[name]:
                options[name] |= SPECIAL
        elif isinstance(value, bool):
            continue
        elif name == "vocab_size":
            options[name] = VOCABULARY
        elif isinstance(value, int) and name in TINY:
            options[name] = 16 if name == "patch_size" and value >= 14 else min(value, TINY[name])
        elif isinstance(value, int) and name.endswith(("_token_id", "_token_index")) and value >= VOCABULARY:
            options[name] = VOCABULARY - 1 - len([n for n in options if "_token_i" in n])
        elif isinstance(value, list | tuple) and name in STAGES and value and isinstance(value[0], int):
            options[name] = STAGES[name][: len(value)]
    if "kv_lora_rank" in options:  # latent attention: as many keys as queries
        options["num_key_value_heads"] = options["num_attention_heads"]
    return options


def texts() -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """One text, and a batch of it and a shorter one; every text ends with the end token."""
    ids = torch.randint(5, VOCABULARY - 20, (2, LENGTH), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    ids[0, -1] = ids[1, LENGTH - 6] = END
    ids[1, LENGTH - 5 :], mask[1, LENGTH - 5 :] = PAD, 0
    padded = {"input_ids": ids, "attention_mask": mask}
    return {name: value[:1] for name, value in padded.items()}, padded


def _image_inputs(family: Family, config: Any) -> dict[str, Tensor]:
    """Inputs of a vision model of transformers."""
    if family.name == "imagegpt":
        return {"input_ids": torch.randint(0, VOCABULARY, (1, LENGTH))}
    if family.name == "siglip2":  # flattened patches instead of images
        patch = config.vision_config.patch_size
        return {
            "pixel_values": torch.randn(1, 16, 3 * patch * patch),
            "pixel_attention_mask": torch.ones(1, 16, dtype=torch.long),
            "spatial_shapes": torch.tensor([[4, 4]]),
        }
    pixels = {"PerceiverForImageClassificationLearned": 16, "PerceiverForImageClassificationFourier": 224,
              "PerceiverForImageClassificationConvProcessing": 224}.get(family.model, PIXELS)  # fmt: skip
    return {"pixel_values": torch.randn(1, 3, pixels, pixels)}


def third_feature(output: Any) -> Tensor:
    """Target for models without classes: one of their features."""
    features = output[0] if isinstance(output, tuple) else output
    return features[:, 3]


def _torchvision(name: str, **options: Any) -> nn.Module:
    from torchvision import models

    return models.get_model(name, weights=None, num_classes=CLASSES, **options)


def _torchvision_vit(_: str) -> nn.Module:
    from torchvision.models.vision_transformer import VisionTransformer

    return VisionTransformer(PIXELS, 16, 3, 4, 32, 64, num_classes=CLASSES)


def _torchvision_swin(name: str) -> nn.Module:
    from torchvision.models import swin_transformer as swin

    newer = {"block": swin.SwinTransformerBlockV2, "downsample_layer": swin.PatchMergingV2} if "v2" in name else {}
    return swin.SwinTransformer([4, 4], 32, [2, 2], [2, 4], [4, 4], num_classes=CLASSES, **newer)


def _torchvision_maxvit(_: str) -> nn.Module:
    from torchvision.models.maxvit import MaxVit

    return MaxVit((PIXELS, PIXELS), 16, 4, [16, 32], [1, 1], 8, 0.0, num_classes=CLASSES)


def _torchvision_inception(name: str) -> nn.Module:
    return _torchvision(name, init_weights=False, aux_logits=False)


TORCHVISION: dict[str, Callable[[str], nn.Module]] = {
    **dict.fromkeys(
        ("alexnet", "convnext_tiny", "densenet121", "efficientnet_b0", "efficientnet_v2_s", "mnasnet0_5",
         "mobilenet_v2", "mobilenet_v3_small", "regnet_y_400mf", "resnet18", "shufflenet_v2_x0_5", "squeezenet1_1",
         "vgg11"), _torchvision),
    **dict.fromkeys(("googlenet", "inception_v3"), _torchvision_inception),
    "vit": _torchvision_vit, "swin": _torchvision_swin, "swin_v2": _torchvision_swin, "maxvit": _torchvision_maxvit,
}  # fmt: skip


def _open_clip(**options: Any) -> nn.Module:
    from open_clip.model import _build_vision_tower

    tiny = {"image_size": PIXELS, "patch_size": 16, "width": 32, "layers": 3, "head_width": 8}
    return _build_vision_tower(16, tiny | options)


OPEN_CLIP: dict[str, dict[str, Any]] = {
    "vit": {},
    "vit mean": {"pool_type": "avg"},
    "vit no pre-norm": {"no_ln_pre": True},
    "vit final norm after pool": {"final_ln_after_pool": True},
    "vit LayerScale": {"ls_init_value": 0.1},
    "vit attentional pool": {"attentional_pool": True, "attn_pooler_queries": 8, "attn_pooler_heads": 4},
    "vit tokens": {"output_tokens": True},
    "modified resnet": {"layers": [1, 1, 1, 1], "width": 16, "head_width": 32},
    "timm vit": {"timm_model_name": "test_vit", "timm_pool": "", "timm_proj": "linear"},
}
