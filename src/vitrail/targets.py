"""Targets with names: what of a model's output is explained."""

from vitrail.inputs.targets import contrast, similarity

__all__ = ["contrast", "similarity"]
