"""Interfaces to Captum, Quantus, pytorch-grad-cam and Spark. None of these libraries is imported."""

from vitrail.tools.integrations.captum import Attribution, as_maps
from vitrail.tools.integrations.quantus import explain_func
from vitrail.tools.integrations.spark import SPARK_COLUMNS, spark_explainer

__all__ = ["SPARK_COLUMNS", "Attribution", "as_maps", "explain_func", "spark_explainer"]
