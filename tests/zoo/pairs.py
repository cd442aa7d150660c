"""Models of images with texts."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from tests.zoo.entry import Entry, Subject
from tests.zoo.tiny import add_noise, in_double

PIXELS, WORDS = 64, 8
WIDTH = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
VISION = WIDTH | {"image_size": PIXELS, "patch_size": 16}
TEXT = WIDTH | {
    "vocab_size": 60, "max_position_embeddings": 32, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip


def words(count: int, length: int = WORDS) -> dict[str, Tensor]:
    ids = torch.randint(3, 50, (count, length), generator=torch.Generator().manual_seed(1))
    ids[:, -1] = 2
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def pixels(count: int) -> Tensor:
    return torch.randn(count, 3, PIXELS, PIXELS, generator=torch.Generator().manual_seed(3))


def build(
    model: str, config: str, inputs: dict[str, Tensor], target: Any, shared: tuple[str, ...], **options: Any
) -> Subject:
    import transformers

    torch.manual_seed(0)
    module = getattr(transformers, model)(getattr(transformers, config)(**options))
    return in_double(Subject(add_noise(module), inputs, target, shared, grid=(4, 4)))


def first_text(output: Any) -> Tensor:
    """Similarity of each image to the first text."""
    return output.logits_per_image[:, 0]


def contrastive(model: str, config: str, texts: int = 2, **options: Any) -> Subject:
    """Three images and several texts, which all images share."""
    given = {**words(texts), "pixel_values": pixels(3)}
    sizes = {"vision_config": VISION, "text_config": TEXT} | options
    return build(model, config, given, first_text, ("input_ids", "attention_mask"), **sizes)


def paired(model: str, config: str, target: Any = 1, **options: Any) -> Subject:
    """Two images with a text each."""
    return build(model, config, {**words(2), "pixel_values": pixels(2)}, target, (), **options)


def match(output: Any) -> Tensor:
    """Whether image and text belong together."""
    return output.itm_score[:, 1]


CHAIN = ("rollout", "transformer_mm", "attnlrp", "abslrp", "gradient_x_input", "occlusion")
#: With the methods made for such models.
PROMPTED = (*CHAIN, "grad_eclip", "legrad", "atman")
INPUTS = ("gradient_x_input", "occlusion")
#: What the text encoder is explained by, given together with images.
TEXT_SIDE = ("rollout", "transformer_mm", "grad_eclip", "legrad", "atman")


def text_side(texts: int = 3) -> Subject:
    """The texts of CLIP for the first image, beside its text encoder alone with that image's embedding."""
    import transformers

    subject = contrastive("CLIPModel", "CLIPConfig", texts, projection_dim=16)
    model, given = subject.model, subject.inputs
    with torch.no_grad():
        image = model.get_image_features(pixel_values=given["pixel_values"][:1])
    image = getattr(image, "pooler_output", image)
    image = image / image.norm(dim=-1, keepdim=True)
    config = transformers.CLIPTextConfig(**TEXT, projection_dim=16)
    alone = transformers.CLIPTextModelWithProjection(config).double().eval()
    weights = {name: value for name, value in model.state_dict().items() if name.startswith("text_")}
    alone.load_state_dict(weights)

    def similar(output: Any) -> Tensor:
        unit = output.text_embeds / output.text_embeds.norm(dim=-1, keepdim=True)
        return (unit @ image.T)[:, 0] * model.logit_scale.exp().detach()

    words_given = {name: given[name] for name in ("input_ids", "attention_mask")}
    twin = Subject(alone, words_given, similar)
    return Subject(
        model, given, lambda output: output.logits_per_text[:, 0], ("pixel_values",), twin=twin,
        options={"of": "input_ids"},
    )  # fmt: skip


ENTRIES = [
    Entry("hf:CLIPModel, text", text_side, ("same_as_twin",), TEXT_SIDE, slow=False, target="image"),
    Entry("hf:CLIPModel", partial(contrastive, "CLIPModel", "CLIPConfig", projection_dim=16), ("permute_examples",),
          PROMPTED, slow=False, target="prompt"),
    Entry("hf:CLIPModel, three texts", partial(contrastive, "CLIPModel", "CLIPConfig", 3, projection_dim=16),
          ("permute_examples",), CHAIN, target="prompt"),
    Entry("hf:SiglipModel", partial(contrastive, "SiglipModel", "SiglipConfig"), ("permute_examples",), PROMPTED,
          target="prompt"),
    Entry("hf:ChineseCLIPModel", partial(contrastive, "ChineseCLIPModel", "ChineseCLIPConfig", projection_dim=16),
          ("permute_examples",), CHAIN, target="prompt"),
    Entry("hf:AltCLIPModel",
          partial(contrastive, "AltCLIPModel", "AltCLIPConfig", projection_dim=16,
                  text_config=TEXT | {"project_dim": 16, "pad_token_id": 1}),
          ("permute_examples",), PROMPTED, target="prompt"),
    Entry("hf:BlipModel", partial(contrastive, "BlipModel", "BlipConfig", projection_dim=16), ("permute_examples",),
          PROMPTED, target="prompt"),
    Entry("hf:MetaClip2Model", partial(contrastive, "MetaClip2Model", "MetaClip2Config", projection_dim=16),
          ("permute_examples",), CHAIN, target="prompt"),
    Entry("hf:ViltForQuestionAnswering",
          partial(paired, "ViltForQuestionAnswering", "ViltConfig", **VISION, num_labels=5, vocab_size=60,
                  max_position_embeddings=32), ("permute_examples", "swap_patches"), INPUTS,
          {"rollout": "the order of the patches differed"}),
    Entry("hf:BlipForImageTextRetrieval",
          partial(paired, "BlipForImageTextRetrieval", "BlipConfig", match, vision_config=VISION, text_config=TEXT,
                  image_text_hidden_size=16), ("permute_examples",), INPUTS, target="match"),
]  # fmt: skip
