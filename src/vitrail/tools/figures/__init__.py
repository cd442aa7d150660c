"""The papers' figures, drawn for any model and images."""

# isort: off
from vitrail.tools.figures import vtranm, gradtoken, vitcx  # the order of the registry
from vitrail.tools.figures.registry import FIGURES, FigureEntry, Progress, draw, find_figure
# isort: on

__all__ = ["FIGURES", "FigureEntry", "Progress", "draw", "find_figure", "gradtoken", "vitcx", "vtranm"]
