"""TextEncoder: the text side of a model of images and texts, as a model of its own that scores texts for one image."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.capture.frozen import frozen
from vitrail.capture.inputs import ModelInputs, run_model
from vitrail.errors import NotApplicableError
from vitrail.targets.output_reader import CallContext, OutputReader
from vitrail.targets.text_call import SharedTexts


class TextEncoder(nn.Module):
    """Scores of texts for one image: the cosine of their embeddings and that of the image, on the model's scale.

    The embedding of the image is fixed, so that only the text encoder runs.

    Args:
        model: A model of images and texts.
        image: Embedding of the image, shape (d,).
    """

    def __init__(self, model: nn.Module, image: Tensor) -> None:
        super().__init__()
        self.model = model
        self.config = getattr(getattr(model, "config", None), "text_config", None)
        self.register_buffer("image", F.normalize(image.detach(), dim=-1), persistent=False)
        scale, bias = getattr(model, "logit_scale", None), getattr(model, "logit_bias", None)
        self.scale = 1.0 if scale is None else float(scale.detach().exp())
        self.bias = 0.0 if bias is None else float(bias.detach())

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Score texts, shape (n, length), for the image.

        Returns:
            Shape (n, 1).
        """
        text = F.normalize(_text_features(self.model, input_ids, attention_mask), dim=-1)
        return (self.scale * text @ self.image.to(text) + self.bias)[:, None]  # type: ignore[operator]

    def get_input_embeddings(self) -> nn.Embedding:
        """The layer that makes the vectors of words."""
        named = [(name, m) for name, m in self.model.named_modules() if isinstance(m, nn.Embedding)]
        words = [
            m for name, m in named if name.rpartition(".")[2] in ("token_embedding", "word_embeddings", "word_embed")
        ]
        if not words:
            raise NotApplicableError(f"the embedding layer of {type(self.model).__name__}'s words was not found")
        return words[0]


def text_encoder(model: nn.Module, model_inputs: ModelInputs, image: int, query: int | None = None) -> TextEncoder:
    """The text side of a model for one image of a call.

    Args:
        model: The model of images and texts.
        model_inputs: The call.
        image: Which image.
        query: For detectors, the query whose embedding is compared with the texts.

    Raises:
        NotApplicableError: The model has no text encoder of its own.
    """
    inner = model.model if isinstance(model, SharedTexts) else model
    with frozen(model), torch.no_grad():
        output = run_model(model, model_inputs)
        if query is not None:
            queries = getattr(output, "class_embeds", None)
            if queries is None:
                raise NotApplicableError(f"{type(inner).__name__} returns no embeddings of its queries")
            vector = queries[image, query]
        elif hasattr(inner, "vision_proj") and model_inputs.image is not None:
            hidden = inner.vision_model(model_inputs.image[image : image + 1])[0]  # type: ignore[operator]
            vector = inner.vision_proj(hidden[:, 0])[0]  # type: ignore[operator]
        else:
            vector = OutputReader(output, CallContext(inner)).image_embedding()[image]
    return TextEncoder(inner, vector).eval()


def _text_features(model: Any, input_ids: Tensor, attention_mask: Tensor | None) -> Tensor:
    """Embeddings of texts by the model's own text encoder."""
    mask = {} if attention_mask is None else {"attention_mask": attention_mask}
    if hasattr(model, "encode_text"):
        return model.encode_text(input_ids)  # type: ignore[no-any-return]
    owner = getattr(model, "owlvit", None) or getattr(model, "owlv2", None) or model
    if hasattr(owner, "get_text_features"):
        found = owner.get_text_features(input_ids, **mask)
        return found if isinstance(found, Tensor) else found.pooler_output
    if hasattr(model, "text_encoder") and hasattr(model, "text_proj"):
        hidden = model.text_encoder(input_ids=input_ids, **mask, return_dict=True).last_hidden_state
        return model.text_proj(hidden[:, 0])  # type: ignore[no-any-return]
    raise NotApplicableError(
        f"{type(model).__name__} has no text encoder of its own, so that the words are not explained apart: pass "
        "of='input_ids' with a dict of tensors"
    )
