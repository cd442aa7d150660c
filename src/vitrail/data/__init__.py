"""Pictures and texts whose right answers are known: drawn on the spot, or read from the published data sets."""

from vitrail.data.cifar import CIFAR10, CIFAR100
from vitrail.data.datasets import DATASETS, open_dataset
from vitrail.data.imagenet import ImageNet
from vitrail.data.imagenet_segmentation import ImageNetSegmentation
from vitrail.data.mask_folder import MaskFolder
from vitrail.data.movies import Movies
from vitrail.data.sample import Dataset, Sample
from vitrail.data.scene_set import SceneSet
from vitrail.data.scenes import CLASSES, Scene, Scenes, render
from vitrail.data.voc import VOC2012, VOC_CLASSES, VOC_TO_IMAGENET

__all__ = [
    "CIFAR10",
    "CIFAR100",
    "CLASSES",
    "DATASETS",
    "VOC2012",
    "VOC_CLASSES",
    "VOC_TO_IMAGENET",
    "Dataset",
    "ImageNet",
    "ImageNetSegmentation",
    "MaskFolder",
    "Movies",
    "Sample",
    "Scene",
    "SceneSet",
    "Scenes",
    "open_dataset",
    "render",
]  # fmt: skip
