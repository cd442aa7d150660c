"""Pictures whose right answers are known."""

from vitrail.data.scenes import CLASSES, Scene, Scenes, render

__all__ = ["CLASSES", "Scene", "Scenes", "render"]
