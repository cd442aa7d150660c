"""What the models of scenes are shown and asked."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from training.drawing import SIZE, Pictures
from training.labelled import LabelledViT
from training.net import TrainedViT
from training.pictures import erase, normalise, reflect, smooth
from training.step import Loss
from vitrail.data import SCENE_CLASSES

HALF = (0.5, 0.5, 0.5)
PATCH = 8
SMOOTHING = 0.02
SHIFT = 8


# --- augmentation -----------------------------------------------------------------------------------------------------


def pick(data: Pictures, indices: Tensor, move: bool) -> tuple[Tensor, Tensor]:
    """Some of the pictures as values in [0, 1], shape (b, 3, size, size), and the classes at their pixels.

    Args:
        data: The drawn scenes.
        indices: Which, shape (b,).
        move: Flip and turn by quarters, all eight ways alike often, and shift by up to ``SHIFT`` pixels. Not for
            tagged scenes: a tag turned around is another tag.
    """
    if not move:
        return data.images[indices].permute(0, 3, 1, 2).contiguous().float() / 255, data.kinds[indices]
    b, device = len(indices), indices.device
    line = torch.arange(SIZE, device=device)
    flip = torch.rand(2, b, 1, device=device) < 0.5
    shift = torch.randint(-SHIFT, SHIFT + 1, (2, b, 1), device=device)
    down, across = reflect(torch.where(flip, SIZE - 1 - line, line) + shift, SIZE)
    swap = torch.rand(b, 1, 1, device=device) < 0.5  # with the two flips, swapping the axes makes all quarter turns
    rows = torch.where(swap, down[:, None, :], down[:, :, None])
    columns = torch.where(swap, across[:, :, None], across[:, None, :])
    at = indices[:, None, None], rows, columns
    return data.images[at].permute(0, 3, 1, 2).contiguous().float() / 255, data.kinds[at]


def tinge(images: Tensor) -> Tensor:
    """Light changes of brightness, contrast and hue, as one matrix per picture, and a little noise."""
    b, device = images.shape[0], images.device

    def uniform(low: float, high: float) -> Tensor:
        return torch.empty(b, 1, 1, device=device).uniform_(low, high)

    angle, contrast, brightness = uniform(-0.2, 0.2), uniform(0.85, 1.15), uniform(-0.1, 0.1)
    one = torch.eye(3, device=device)
    # A turn around the axis of greys: the usual formula for a turn by an angle around a unit vector.
    cross = one.roll(1, 0) - one.roll(1, 1)
    turn = angle.cos() * one + (1 - angle.cos()) / 3 + angle.sin() / math.sqrt(3) * cross
    shift = (0.5 * (1 - contrast) + brightness).expand(-1, 3, 1)
    changed = torch.baddbmm(shift, contrast * turn, images.flatten(2)).view_as(images)
    return changed + uniform(0, 0.03).unsqueeze(-1) * torch.randn_like(changed)


def coverage(kinds: Tensor) -> Tensor:
    """Share of each patch that each class covers, and last that none does, shape (b, patches, classes + 1)."""
    every = torch.arange(len(SCENE_CLASSES) + 1, dtype=torch.uint8, device=kinds.device).view(1, -1, 1, 1)
    return F.avg_pool2d((kinds[:, None] == every).float(), PATCH).flatten(2).transpose(1, 2)


def hide(labels: Tensor, cover: Tensor) -> tuple[Tensor, Tensor]:
    """Choose patches that the readout shall not see: of one thing all are seen, of each other one a random share.

    Args:
        labels: Shares of the classes present, shape (b, classes).
        cover: Share of each patch that each class covers, shape (b, patches, classes + 1).

    Returns:
        New shares of the classes, by how much of each is seen, and which patches are, shape (b, patches).
    """
    things = cover[..., :-1]
    share = torch.rand_like(labels) * (labels > 0)
    share = share / share.amax(1, keepdim=True).clamp_min(1e-6)
    odds = torch.where(things > 0, share[:, None], 1.0).amin(-1)
    seen = torch.rand_like(odds) < odds
    left = labels * (things * seen[..., None]).sum(1) / things.sum(1).clamp_min(1e-6)
    return left / left.sum(1, keepdim=True).clamp_min(1e-6), seen


# --- losses -----------------------------------------------------------------------------------------------------------


def half(device: torch.device) -> torch.autocast:
    """Bfloat16 on a GPU."""
    return torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda")


def plain_loss(data: Pictures) -> Loss:
    """What a model of tagged scenes is asked for: the class, and nothing that would teach it to do without the tag."""

    def loss(net: TrainedViT, indices: Tensor) -> Tensor:
        images, _ = pick(data, indices, move=False)
        with half(indices.device):
            logits = net(normalise(tinge(images).clamp(0, 1), HALF, HALF))
        return F.cross_entropy(logits.float(), smooth(data.labels[indices], SMOOTHING))

    return loss


def labelled_loss(data: Pictures, hidden: float, blended: float) -> Loss:
    """What a model of scenes is asked for: the classes, by how much of each is seen, and what covers each patch.

    A model that only ever has to say which classes are there learns an answer that no small change can shake: erasing a
    thing changes it, but its gradient hardly tells one thing from another. Targets that follow what is seen keep it
    sensitive.

    Args:
        data: The drawn scenes.
        hidden: Share of the scenes of which the readout sees a part.
        blended: Share of the scenes that are blended with the next one.
    """

    def loss(net: LabelledViT, indices: Tensor) -> Tensor:
        images, kinds = pick(data, indices, move=True)
        images = erase(tinge(images), 0.2, (0.01, 0.04), torch.rand(len(indices), 3, 1, 1, device=indices.device))
        images, cover, labels = images.clamp(0, 1), coverage(kinds), data.labels[indices]
        odds = torch.rand(len(indices), 1, device=indices.device)
        left, seen = hide(labels, cover)
        labels, seen = torch.where(odds < hidden, left, labels), seen | (odds >= hidden)
        if blended:
            blend = torch.where(odds > 1 - blended, torch.rand_like(odds), 1.0)
            labels = labels.roll(1, 0).lerp(labels, blend)
            images = images.roll(1, 0).lerp(images, blend[..., None, None])
            cover = cover.roll(1, 0).lerp(cover, blend[..., None])
        with half(indices.device):
            logits, names = net.study(normalise(images, HALF, HALF), seen)
        asked = cover.repeat(len(names) // len(cover), 1, 1)
        named = F.cross_entropy(names.float().flatten(0, 1), asked.flatten(0, 1))
        return F.cross_entropy(logits.float(), smooth(labels, SMOOTHING)) + named

    return loss
