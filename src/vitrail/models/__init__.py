"""Models by name, and what travels with them: preprocessing and class names."""

from vitrail.models.loaded import Loaded, describe, load

__all__ = ["Loaded", "describe", "load"]
