"""One file a method; importing this package fills the registry, in the order methods are listed in."""

# isort: off
from vitrail.methods import raw_attention, rollout
from vitrail.methods import gradcam, gradcam_features, transformer_mm, grad_rollout, gradsam, attcat, agcam, legrad
from vitrail.methods import cdam
from vitrail.methods import vtranm, gradtoken, leadlight
from vitrail.methods import tam, bi_attn, attattr
from vitrail.methods import input_gradients
from vitrail.methods import controls
from vitrail.methods.registry import METHODS, Method, find
# isort: on

__all__ = [
    "METHODS", "Method", "agcam", "attattr", "attcat", "bi_attn", "cdam", "controls", "find", "grad_rollout", "gradcam",
    "gradcam_features", "gradsam", "gradtoken", "input_gradients", "leadlight", "legrad", "raw_attention", "rollout",
    "tam", "transformer_mm", "vtranm",
]  # fmt: skip
