"""One file a method; importing this package fills the registry."""

from vitrail.methods import gradcam, gradtoken, raw_attention, rollout, transformer_mm, vtranm
from vitrail.methods.registry import METHODS, Method, find

__all__ = ["METHODS", "Method", "find", "gradcam", "gradtoken", "raw_attention", "rollout", "transformer_mm", "vtranm"]
