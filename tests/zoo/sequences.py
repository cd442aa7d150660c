"""Models of videos, sound and series, and models whose output is no list of classes."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from tests.zoo.entry import Entry, Subject
from tests.zoo.pairs import PIXELS, VISION, WIDTH, pixels
from tests.zoo.tiny import add_noise, in_double


def noise(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(3))


def build(model: str, config: str, inputs: dict[str, Tensor], target: Any = 1, **options: Any) -> Subject:
    import transformers

    torch.manual_seed(0)
    module = getattr(transformers, model)(getattr(transformers, config)(**options))
    return in_double(Subject(add_noise(module), inputs, target, grid=(4, 4)))


def box(output: Any) -> Tensor:
    return output.pred_boxes[:, 1, 0]


def query(output: Any) -> Tensor:
    return output.logits[:, 1, 2]


def pixel(output: Any) -> Tensor:
    return output.logits[:, 1, 2, 3]


VIDEO = VISION | {"image_size": 32, "num_frames": 4, "tubelet_size": 2, "num_labels": 5}
SOUND = WIDTH | {
    "num_labels": 5, "conv_dim": (16, 16), "conv_stride": (5, 4), "conv_kernel": (10, 4), "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 8, "num_conv_pos_embedding_groups": 2, "vocab_size": 20, "classifier_proj_size": 16,
}  # fmt: skip
#: Methods on images name the axes of what is explained instead.
NO_VIDEO, NO_SOUND, NO_WAVE, NO_SERIES = (
    {"scorecam": f"defined on images.* {axes}"}
    for axes in ("time, height, width", "(time, frequency|frequency, time)", "time", "time, variables")
)
IN_TURN = {"rollout": "a part of its tokens at a time"}
ANY = ("gradient_x_input",)
CHAIN = ("rollout", "transformer_mm")
PLACED = (*CHAIN, *ANY, "occlusion")
ENTRIES = [
    Entry("hf:VideoMAEForVideoClassification",
          partial(build, "VideoMAEForVideoClassification", "VideoMAEConfig", {"pixel_values": noise(2, 4, 3, 32, 32)},
                  **VIDEO), ("permute_examples",), PLACED, NO_VIDEO, slow=False),
    Entry("hf:VivitForVideoClassification",
          partial(build, "VivitForVideoClassification", "VivitConfig", {"pixel_values": noise(2, 4, 3, 32, 32)},
                  **{k: v for k, v in VIDEO.items() if k not in ("patch_size", "tubelet_size")},
                  tubelet_size=[2, 16, 16]),
          ("permute_examples",), PLACED, NO_VIDEO),
    Entry("hf:TimesformerForVideoClassification",
          partial(build, "TimesformerForVideoClassification", "TimesformerConfig",
                  {"pixel_values": noise(2, 4, 3, 32, 32)}, **VIDEO), refused=NO_VIDEO | IN_TURN),
    Entry("hf:ASTForAudioClassification",
          partial(build, "ASTForAudioClassification", "ASTConfig", {"input_values": noise(2, 64, 32)},
                  **WIDTH, max_length=64, num_mel_bins=32, num_labels=5, patch_size=16, frequency_stride=16,
                  time_stride=16), ("permute_examples",), PLACED, NO_SOUND, slow=False),
    Entry("hf:Wav2Vec2ForSequenceClassification",
          partial(build, "Wav2Vec2ForSequenceClassification", "Wav2Vec2Config", {"input_values": noise(2, 800)},
                  **SOUND), ("permute_examples",), PLACED, NO_WAVE),
    Entry("hf:HubertForSequenceClassification",
          partial(build, "HubertForSequenceClassification", "HubertConfig", {"input_values": noise(2, 800)},
                  **SOUND), ("permute_examples",), PLACED, NO_WAVE),
    Entry("hf:WhisperForAudioClassification",
          partial(build, "WhisperForAudioClassification", "WhisperConfig", {"input_features": noise(2, 16, 64)},
                  d_model=32, encoder_layers=2, decoder_layers=1, encoder_attention_heads=4, decoder_attention_heads=4,
                  encoder_ffn_dim=48, decoder_ffn_dim=48, num_mel_bins=16, max_source_positions=32, vocab_size=60,
                  num_labels=5, pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1,
                  classifier_proj_size=16),
          ("permute_examples",), PLACED, NO_SOUND),
    Entry("hf:PatchTSTForClassification",
          partial(build, "PatchTSTForClassification", "PatchTSTConfig", {"past_values": noise(2, 32, 2)},
                  num_input_channels=2, context_length=32, patch_length=8, patch_stride=8, d_model=32, ffn_dim=48,
                  num_hidden_layers=2, num_attention_heads=4, num_targets=5, use_cls_token=True),
          refused=NO_SERIES | IN_TURN),
    Entry("hf:YolosForObjectDetection",
          partial(build, "YolosForObjectDetection", "YolosConfig", {"pixel_values": pixels(2)}, query,
                  **VISION | {"image_size": (PIXELS, PIXELS)}, num_detection_tokens=5, num_labels=4),
          ("swap_patches",), ("rollout", "transformer_mm", *ANY), slow=False, target="label of a box"),
    Entry("hf:YolosForObjectDetection, a box",
          partial(build, "YolosForObjectDetection", "YolosConfig", {"pixel_values": pixels(2)}, box,
                  **VISION | {"image_size": (PIXELS, PIXELS)}, num_detection_tokens=5, num_labels=4),
          ("swap_patches",), ("rollout", "transformer_mm", "attnlrp", *ANY), target="coordinate of a box"),
    Entry("hf:SegformerForSemanticSegmentation",
          partial(build, "SegformerForSemanticSegmentation", "SegformerConfig", {"pixel_values": pixels(2)}, pixel,
                  hidden_sizes=[16, 16, 32, 32], depths=[1, 1, 1, 1], num_attention_heads=[1, 1, 2, 2],
                  decoder_hidden_size=32, num_labels=5), ("permute_examples",), ANY, {"rollout": "number of tokens"},
          target="label of a pixel"),
    Entry("hf:BeitForSemanticSegmentation",
          partial(build, "BeitForSemanticSegmentation", "BeitConfig", {"pixel_values": pixels(2)}, pixel,
                  **VISION | {"num_hidden_layers": 4}, out_indices=[1, 2, 3, 4], num_labels=5, pool_scales=[1, 2],
                  use_auxiliary_head=False), ("permute_examples",), ANY, target="label of a pixel"),
    Entry("hf:DPTForSemanticSegmentation",
          partial(build, "DPTForSemanticSegmentation", "DPTConfig", {"pixel_values": pixels(2)}, pixel,
                  **VISION | {"num_hidden_layers": 4}, backbone_out_indices=[0, 1, 2, 3],
                  neck_hidden_sizes=[8, 8, 8, 8],
                  fusion_hidden_size=16, num_labels=5, reassemble_factors=[4, 2, 1, 0.5], use_auxiliary_head=False,
                  is_hybrid=False), ("permute_examples",), ANY, target="label of a pixel"),
    Entry("hf:ViTMAEForPreTraining",
          partial(build, "ViTMAEForPreTraining", "ViTMAEConfig", {"pixel_values": pixels(2)},
                  lambda o: o.logits[:, 3, 5], **VISION, decoder_hidden_size=32, decoder_num_hidden_layers=1,
                  decoder_num_attention_heads=4, decoder_intermediate_size=48),
          refused={"transformer_mm": "changes its number of tokens"}, target="reconstruction"),
]  # fmt: skip
