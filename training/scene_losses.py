"""Augmentation and losses of the models of scenes."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from training.images import normalise, random_erase, reflect, smooth_labels
from training.models import PatchLabelViT, TrainableViT
from training.recipe import Loss
from training.runtime import autocast
from training.scene_data import SIZE, SceneImages
from vitrail.data import SCENE_CLASSES

HALF = (0.5, 0.5, 0.5)
PATCH = 8
LABEL_SMOOTHING = 0.02
MAX_SHIFT = 8


# --- augmentation -----------------------------------------------------------------------------------------------------


def select_images(data: SceneImages, indices: Tensor, move: bool) -> tuple[Tensor, Tensor]:
    """Select images as values in [0, 1], shape (b, 3, size, size), and the classes of their pixels.

    Args:
        data: The rendered scenes.
        indices: Indices of the images, shape (b,).
        move: Flip, rotate by quarter turns and shift by up to ``MAX_SHIFT`` pixels at random. Not for tagged scenes,
            because a rotated tag is another tag.
    """
    if not move:
        return data.images[indices].permute(0, 3, 1, 2).contiguous().float() / 255, data.pixel_classes[indices]
    b, device = len(indices), indices.device
    line = torch.arange(SIZE, device=device)
    flip = torch.rand(2, b, 1, device=device) < 0.5
    shift = torch.randint(-MAX_SHIFT, MAX_SHIFT + 1, (2, b, 1), device=device)
    down, across = reflect(torch.where(flip, SIZE - 1 - line, line) + shift, SIZE)
    transpose = torch.rand(b, 1, 1, device=device) < 0.5  # together with the two flips: all quarter turns
    rows = torch.where(transpose, down[:, None, :], down[:, :, None])
    columns = torch.where(transpose, across[:, :, None], across[:, None, :])
    pixels = indices[:, None, None], rows, columns
    return data.images[pixels].permute(0, 3, 1, 2).contiguous().float() / 255, data.pixel_classes[pixels]


def jitter_colours(images: Tensor) -> Tensor:
    """Change brightness, contrast and hue slightly, with one matrix per image, and add some noise."""
    b, device = images.shape[0], images.device

    def uniform(low: float, high: float) -> Tensor:
        return torch.empty(b, 1, 1, device=device).uniform_(low, high)

    angle, contrast, brightness = uniform(-0.2, 0.2), uniform(0.85, 1.15), uniform(-0.1, 0.1)
    identity = torch.eye(3, device=device)
    # Rotation of RGB space around the grey axis (Rodrigues' formula).
    cross = identity.roll(1, 0) - identity.roll(1, 1)
    rotation = angle.cos() * identity + (1 - angle.cos()) / 3 + angle.sin() / math.sqrt(3) * cross
    shift = (0.5 * (1 - contrast) + brightness).expand(-1, 3, 1)
    changed = torch.baddbmm(shift, contrast * rotation, images.flatten(2)).view_as(images)
    return changed + uniform(0, 0.03).unsqueeze(-1) * torch.randn_like(changed)


def patch_coverage(pixel_classes: Tensor) -> Tensor:
    """Fraction of each patch that each class covers, the last one for none, shape (b, patches, classes + 1)."""
    classes = torch.arange(len(SCENE_CLASSES) + 1, dtype=torch.uint8, device=pixel_classes.device).view(1, -1, 1, 1)
    return F.avg_pool2d((pixel_classes[:, None] == classes).float(), PATCH).flatten(2).transpose(1, 2)


def hide_patches(labels: Tensor, coverage: Tensor) -> tuple[Tensor, Tensor]:
    """Choose patches to hide from the readout: none of one object, and a random fraction of each other object.

    Args:
        labels: Target distributions, shape (b, classes).
        coverage: Fraction of each patch that each class covers, shape (b, patches, classes + 1).

    Returns:
        New target distributions, in proportion to the visible part of each class, and the visible patches, shape
        (b, patches).
    """
    objects = coverage[..., :-1]
    fraction = torch.rand_like(labels) * (labels > 0)
    fraction = fraction / fraction.amax(1, keepdim=True).clamp_min(1e-6)
    probability = torch.where(objects > 0, fraction[:, None], 1.0).amin(-1)
    visible = torch.rand_like(probability) < probability
    remaining = labels * (objects * visible[..., None]).sum(1) / objects.sum(1).clamp_min(1e-6)
    return remaining / remaining.sum(1, keepdim=True).clamp_min(1e-6), visible


# --- losses -----------------------------------------------------------------------------------------------------------


def class_loss(data: SceneImages) -> Loss:
    """Cross-entropy of the class, for tagged scenes: no augmentation that would teach the model to ignore the tag."""

    def loss(net: TrainableViT, indices: Tensor) -> Tensor:
        images, _ = select_images(data, indices, move=False)
        with autocast(indices.device):
            logits = net(normalise(jitter_colours(images).clamp(0, 1), HALF, HALF))
        return F.cross_entropy(logits.float(), smooth_labels(data.labels[indices], LABEL_SMOOTHING))

    return loss


def class_and_patch_loss(data: SceneImages, hidden: float, blended: float) -> Loss:
    """Cross-entropy of the classes, in proportion to their visible parts, plus that of the class of each patch.

    A model trained only to name the classes present learns saturated answers: erasing an object changes them, but
    their gradients hardly differ between objects. Targets in proportion to the visible parts keep the answers
    sensitive.

    Args:
        data: The rendered scenes.
        hidden: Fraction of the scenes in which patches are hidden from the readout.
        blended: Fraction of the scenes that are blended with the next one in the batch.
    """

    def loss(net: PatchLabelViT, indices: Tensor) -> Tensor:
        images, pixel_classes = select_images(data, indices, move=True)
        images = jitter_colours(images)
        fill = torch.rand(len(indices), 3, 1, 1, device=indices.device)
        images = random_erase(images, 0.2, (0.01, 0.04), fill)
        images, coverage, labels = images.clamp(0, 1), patch_coverage(pixel_classes), data.labels[indices]
        chance = torch.rand(len(indices), 1, device=indices.device)
        visible_labels, visible = hide_patches(labels, coverage)
        labels, visible = torch.where(chance < hidden, visible_labels, labels), visible | (chance >= hidden)
        if blended:
            weight = torch.where(chance > 1 - blended, torch.rand_like(chance), 1.0)
            labels = labels.roll(1, 0).lerp(labels, weight)
            images = images.roll(1, 0).lerp(images, weight[..., None, None])
            coverage = coverage.roll(1, 0).lerp(coverage, weight[..., None])
        with autocast(indices.device):
            logits, patch_logits = net.forward_with_patches(normalise(images, HALF, HALF), visible)
        patch_targets = coverage.repeat(len(patch_logits) // len(coverage), 1, 1)
        patch_term = F.cross_entropy(patch_logits.float().flatten(0, 1), patch_targets.flatten(0, 1))
        return F.cross_entropy(logits.float(), smooth_labels(labels, LABEL_SMOOTHING)) + patch_term

    return loss
