"""Train explainers that predict Shapley values of patches with one forward pass, and load them."""

from vitrail.methods.shapley_explainer.train import TrainedRun, TrainingSettings, train_explainer
from vitrail.methods.shapley_explainer.training_images import TrainingImages, open_training_images
from vitrail.methods.shapley_explainer.weights import ExplainerRecord, TrainedExplainer, load_explainer

__all__ = [
    "ExplainerRecord", "TrainedExplainer", "TrainedRun", "TrainingImages", "TrainingSettings", "load_explainer",
    "open_training_images", "train_explainer",
]  # fmt: skip
