"""Data sets of images and texts with labels, masks, boxes or marked passages, and the scenes renderer."""

from vitrail.data.addresses import open_source
from vitrail.data.captions import Caption, describe_objects, encode_captions
from vitrail.data.cifar import CIFAR10, CIFAR100
from vitrail.data.datasets import DATASETS, open_dataset
from vitrail.data.funnybirds.bird_folder import FunnyBirds, save_birds
from vitrail.data.funnybirds.birds import (
    draw_bird_classes,
    draw_bird_scenes,
    list_interventions,
    without_object,
    without_parts,
)
from vitrail.data.funnybirds.renderer import BirdRenderer
from vitrail.data.image_grids import ImageGrids, draw_grids
from vitrail.data.image_source import ImageSource
from vitrail.data.imagenet import ImageNet
from vitrail.data.imagenet_segmentation import ImageNetSegmentation
from vitrail.data.mask_folder import MaskFolder
from vitrail.data.motions import MOVEMENTS, MotionScene, render_motion
from vitrail.data.movies import Movies
from vitrail.data.needles import NeedlePrompt, draw_needle
from vitrail.data.question_processor import QuestionProcessor
from vitrail.data.questions import Question, ask_questions
from vitrail.data.recall import RECALL_TASKS, RecallPrompt, draw_recall, recall_tokenizer
from vitrail.data.sample import BaseDataset, Dataset, Sample
from vitrail.data.scene_dataset import SceneDataset, scene_sample
from vitrail.data.scenes import Scene, Scenes, render
from vitrail.data.shapes import SCENE_CLASSES
from vitrail.data.source import Source, SourceItem
from vitrail.data.textures import SCENE_COLOURS
from vitrail.data.tones import TONES, ToneScene, render_tones
from vitrail.data.voc import VOC2012, VOC_CLASSES, VOC_TO_IMAGENET
from vitrail.data.world_pairs import WorldPairs

__all__ = [
    "CIFAR10", "CIFAR100", "DATASETS", "MOVEMENTS", "RECALL_TASKS", "SCENE_CLASSES", "SCENE_COLOURS", "TONES",
    "VOC2012", "VOC_CLASSES", "VOC_TO_IMAGENET", "BaseDataset", "BirdRenderer", "Caption", "Dataset", "FunnyBirds",
    "ImageGrids", "ImageNet", "ImageNetSegmentation", "ImageSource", "MaskFolder", "MotionScene", "Movies",
    "NeedlePrompt", "Question", "QuestionProcessor", "RecallPrompt", "Sample", "Scene", "SceneDataset", "Scenes",
    "Source", "SourceItem", "ToneScene", "WorldPairs", "ask_questions", "describe_objects", "draw_bird_classes",
    "draw_bird_scenes", "draw_grids", "draw_needle", "draw_recall", "encode_captions", "list_interventions",
    "open_dataset", "open_source", "recall_tokenizer", "render", "render_motion", "render_tones", "save_birds",
    "scene_sample", "without_object", "without_parts",
]  # fmt: skip
