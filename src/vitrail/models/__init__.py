"""Models by name, with their preprocessing and class names."""

from vitrail.models.catalogue import CATALOGUE, CatalogueEntry, catalogue_entry, full_name, short_name
from vitrail.models.checkpoint import load_weights, read_weights
from vitrail.models.image_geometry import ImageGeometry
from vitrail.models.loaded import LoadedModel, describe, imagenet_classes
from vitrail.models.loading import EMBEDDED_MODELS, load, load_embedded, offline, weights_cached
from vitrail.models.plain_vit import PlainViT, tiny_vit
from vitrail.models.preprocess import Preprocess, open_image
from vitrail.models.sources import embed_texts

__all__ = [
    "CATALOGUE", "EMBEDDED_MODELS", "CatalogueEntry", "ImageGeometry", "LoadedModel", "PlainViT", "Preprocess",
    "catalogue_entry", "describe", "embed_texts", "full_name", "imagenet_classes", "load", "load_embedded",
    "load_weights", "offline", "open_image", "read_weights", "short_name", "tiny_vit", "weights_cached",
]  # fmt: skip
