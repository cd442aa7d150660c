"""Models by name, and what travels with them: preprocessing and class names."""

from vitrail.models.loaded import LoadedModel, describe
from vitrail.models.loading import load

__all__ = ["LoadedModel", "describe", "load"]
