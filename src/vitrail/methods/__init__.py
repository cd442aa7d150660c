"""One file a method; importing this package fills the registry, in the order methods are listed in."""

# isort: off
from vitrail.methods import raw_attention, rollout
from vitrail.methods import gradcam, gradcam_features, transformer_mm, grad_rollout, gradsam, attcat, agcam, legrad
from vitrail.methods import cdam
from vitrail.methods import vtranm, gradtoken, leadlight
from vitrail.methods import tam, bi_attn, attattr
from vitrail.methods import lrp, partial_lrp, transformer_attribution, conservative_lrp, attnlrp, abslrp
from vitrail.methods import input_gradients
from vitrail.methods import occlusion, rise, scorecam, vit_cx
from vitrail.methods import controls
from vitrail.methods.registry import METHODS, Method, find
# isort: on

__all__ = [
    "METHODS", "Method", "abslrp", "agcam", "attattr", "attcat", "attnlrp", "bi_attn", "cdam", "conservative_lrp",
    "controls", "find", "grad_rollout", "gradcam", "gradcam_features", "gradsam", "gradtoken", "input_gradients",
    "leadlight", "legrad", "lrp", "occlusion", "partial_lrp", "raw_attention", "rise", "rollout", "scorecam", "tam",
    "transformer_attribution", "transformer_mm", "vit_cx", "vtranm",
]  # fmt: skip
