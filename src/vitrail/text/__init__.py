"""Texts: tokens and words, long texts in windows, and how scores of words are shown."""

from vitrail.text.result import TextMap
from vitrail.text.tokens import Reading

__all__ = ["PUBLISHED", "Reading", "TextMap"]

#: For methods whose released code treats BERT differently from pictures, the variant that does the same.
PUBLISHED = {
    "gradcam": "gradcam:bert",
    "bi_attn": "bi_attn:bert",
    "transformer_attribution": "transformer_attribution:bert",
}
