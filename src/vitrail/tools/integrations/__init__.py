"""Interfaces to Captum, Quantus and pytorch-grad-cam. None of these libraries is imported."""

from vitrail.tools.integrations.captum import Attribution, as_maps
from vitrail.tools.integrations.quantus import explain_func

__all__ = ["Attribution", "as_maps", "explain_func"]
