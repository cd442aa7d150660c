"""Data sets of images and texts with labels, masks, boxes or marked passages, and the scenes renderer."""

from vitrail.data.cifar import CIFAR10, CIFAR100
from vitrail.data.datasets import DATASETS, open_dataset
from vitrail.data.image_grids import ImageGrids, draw_grids
from vitrail.data.imagenet import ImageNet
from vitrail.data.imagenet_segmentation import ImageNetSegmentation
from vitrail.data.mask_folder import MaskFolder
from vitrail.data.movies import Movies
from vitrail.data.sample import BaseDataset, Dataset, Sample
from vitrail.data.scene_dataset import SceneDataset, scene_sample
from vitrail.data.scenes import Scene, Scenes, render
from vitrail.data.shapes import SCENE_CLASSES
from vitrail.data.voc import VOC2012, VOC_CLASSES, VOC_TO_IMAGENET

__all__ = [
    "CIFAR10",
    "CIFAR100",
    "DATASETS",
    "SCENE_CLASSES",
    "VOC2012",
    "VOC_CLASSES",
    "VOC_TO_IMAGENET",
    "BaseDataset",
    "Dataset",
    "ImageGrids",
    "ImageNet",
    "ImageNetSegmentation",
    "MaskFolder",
    "Movies",
    "Sample",
    "Scene",
    "SceneDataset",
    "Scenes",
    "draw_grids",
    "open_dataset",
    "render",
    "scene_sample",
]
