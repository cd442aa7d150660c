"""One file for each method; importing this package fills the registry, in the order in which methods are listed."""

# isort: off
from vitrail.methods import raw_attention, rollout
from vitrail.methods import gradcam, gradcam_features, transformer_mm, grad_rollout, gradsam, attcat, agcam, legrad
from vitrail.methods import cdam, grad_eclip
from vitrail.methods import vtranm, gradtoken, leadlight
from vitrail.methods import tam, bi_attn, attattr, iia
from vitrail.methods import lrp
from vitrail.methods import input_gradients
from vitrail.methods import occlusion, rise, scorecam, vit_cx, tis, shapley, context_cite, atman, value_zeroing
from vitrail.methods import vit_shapley
from vitrail.methods import controls
from vitrail.methods.probe import Probe
from vitrail.capture.trace import Trace
from vitrail.methods.cost import Cost, ModelSize, forward_passes, gradient_passes, lrp_pass, shared_pass
from vitrail.methods.registry import METHODS, Applies, Method, find, register
# isort: on

__all__ = [
    "METHODS", "Applies", "Cost", "Method", "ModelSize", "Probe", "Trace", "agcam", "atman", "attattr", "attcat",
    "bi_attn", "cdam", "context_cite", "controls", "find", "forward_passes", "grad_eclip", "grad_rollout", "gradcam",
    "gradcam_features", "gradient_passes", "gradsam", "gradtoken", "iia", "input_gradients", "leadlight", "legrad",
    "lrp", "lrp_pass", "occlusion", "raw_attention", "register", "rise", "rollout", "scorecam", "shapley",
    "shared_pass", "tam", "tis", "transformer_mm", "value_zeroing", "vit_cx", "vit_shapley", "vtranm",
]  # fmt: skip
