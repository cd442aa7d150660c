"""One file a method; importing this package fills the registry, in the order methods are listed in."""

# isort: off
from vitrail.methods import raw_attention, rollout
from vitrail.methods import gradcam, transformer_mm, vtranm, gradtoken
from vitrail.methods.registry import METHODS, Method, find
# isort: on

__all__ = ["METHODS", "Method", "find", "gradcam", "gradtoken", "raw_attention", "rollout", "transformer_mm", "vtranm"]
