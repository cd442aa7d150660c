"""TextEncoder: the text side of a model of images and texts, as a model of its own that scores texts for images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.capture.frozen import frozen
from vitrail.capture.inputs import ModelInputs
from vitrail.capture.model_call import run_model
from vitrail.errors import NotApplicableError
from vitrail.targets.output_reader import CallContext, OutputReader
from vitrail.targets.text_call import SharedTexts


class TextEncoder(nn.Module):
    """Scores of texts for images: the cosine of their embeddings and those of the images, on the model's scale.

    The embeddings of the images are given, so that only the text encoder runs.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.config = getattr(getattr(model, "config", None), "text_config", None)
        scale, bias = getattr(model, "logit_scale", None), getattr(model, "logit_bias", None)
        self.scale = 1.0 if scale is None else float(scale.detach().exp())
        self.bias = 0.0 if bias is None else float(bias.detach())

    def forward(self, input_ids: Tensor, image_vectors: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Score texts, shape (n, length), each for the embedding of an image, shape (n, d).

        Returns:
            Shape (n, 1).
        """
        text = F.normalize(_text_features(self.model, input_ids, attention_mask), dim=-1)
        image = F.normalize(image_vectors.to(text), dim=-1)
        return (self.scale * (text * image).sum(-1) + self.bias)[:, None]

    def get_input_embeddings(self) -> nn.Embedding:
        """The layer that makes the vectors of words."""
        named = [(name, m) for name, m in self.model.named_modules() if isinstance(m, nn.Embedding)]
        words = [
            m for name, m in named if name.rpartition(".")[2] in ("token_embedding", "word_embeddings", "word_embed")
        ]
        if not words:
            raise NotApplicableError(f"the embedding layer of {type(self.model).__name__}'s words was not found")
        return words[0]


def text_encoder(
    model: nn.Module, model_inputs: ModelInputs, images: Sequence[int], queries: Sequence[int | None]
) -> tuple[TextEncoder, Tensor]:
    """The text side of a model, and the embeddings of images of a call.

    Args:
        model: The model of images and texts.
        model_inputs: The call.
        images: Which images, any of them as often as it is named.
        queries: For detectors, the query of each image whose embedding is compared with the texts; else None.

    Returns:
        The text encoder, and embeddings of shape (n, d).

    Raises:
        NotApplicableError: The model has no text encoder of its own.
    """
    inner = model.model if isinstance(model, SharedTexts) else model
    with frozen(model), torch.no_grad():
        output = run_model(model, model_inputs)
        if any(query is not None for query in queries):
            found = getattr(output, "class_embeds", None)
            if found is None:
                raise NotApplicableError(f"{type(inner).__name__} returns no embeddings of its queries")
            vectors = torch.stack([found[i, query] for i, query in zip(images, queries, strict=True)])
        elif hasattr(inner, "vision_proj") and model_inputs.image is not None:
            hidden = inner.vision_model(model_inputs.image)[0]  # type: ignore[operator]
            vectors = inner.vision_proj(hidden[:, 0])[list(images)]  # type: ignore[operator]
        else:
            vectors = OutputReader(output, CallContext(inner)).image_embedding()[list(images)]
    return TextEncoder(inner).eval(), vectors.detach()


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
