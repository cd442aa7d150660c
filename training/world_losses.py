"""Augmentation and losses of the models of the worlds. Nothing synchronises, so that steps can be captured."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from training.images import smooth_labels
from training.recipe import Loss
from training.runtime import autocast
from training.scene_losses import hide_patches
from training.world_data import OBJECTS, WorldData
from training.world_models import (
    TrainableCLIP,
    TrainableDetector,
    TrainableSegmenter,
    TrainableSpectrogramViT,
    TrainableVideoViT,
)
from vitrail.data.captions import SCENE_PLACES, TEMPLATES, Caption, encode_captions
from vitrail.data.shapes import SCENE_CLASSES
from vitrail.data.textures import SCENE_COLOURS

LABEL_SMOOTHING = 0.02
SHAPES, COLOURS, PLACES = len(SCENE_CLASSES), len(SCENE_COLOURS), len(SCENE_PLACES)


# --- scenes -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SceneBatch:
    """A batch of augmented scenes.

    Attributes:
        images: Values from -1 to 1, shape (b, 3, size, size).
        owners: Object at each pixel, 255 for none, shape (b, size, size).
        shapes: Shape of each object, −1 for none, shape (b, 4).
        colours: Colour of each object, −1 for none, shape (b, 4).
        present: Which objects there are, shape (b, 4).
    """

    images: Tensor
    owners: Tensor
    shapes: Tensor
    colours: Tensor
    present: Tensor

    def masks(self) -> Tensor:
        """Visible pixels of each object, shape (b, 4, size, size)."""
        index = torch.arange(OBJECTS, dtype=torch.uint8, device=self.owners.device).view(1, -1, 1, 1)
        return self.owners[:, None] == index

    def coverage(self, patch: int = 8) -> Tensor:
        """Share of each patch that each object covers, the last one for none, shape (b, patches, 5)."""
        objects = F.avg_pool2d(self.masks().float(), patch).flatten(2).transpose(1, 2)
        return torch.cat([objects, 1 - objects.sum(2, keepdim=True)], 2)

    def boxes(self) -> Tensor:
        """x0, y0, x1, y1 of each object in pixels with exclusive ends, shape (b, 4, 4); zero where there is none."""
        masks, size = self.masks(), self.owners.shape[-1]
        ends = []
        for axis in (2, 3):  # columns from the maximum over rows, then rows
            line = masks.any(axis).float()
            ends.append((line.argmax(-1), size - line.flip(-1).argmax(-1)))
        (x0, x1), (y0, y1) = ends
        return torch.stack([x0, y0, x1, y1], -1) * self.present[..., None]

    def classes_of_owners(self, attributes: Tensor, count: int) -> Tensor:
        """An attribute of the object at each pixel, ``count`` for none, shape (b, size, size)."""
        table = F.pad(attributes, (0, 1), value=count).where(F.pad(self.present, (0, 1)), count)
        owners = self.owners.long().clamp_max(OBJECTS).flatten(1)
        return table.gather(1, owners).view(self.owners.shape)


def select_scenes(data: WorldData, indices: Tensor, move: bool = True) -> SceneBatch:
    """Select scenes; flips and quarter turns, colour jitter and noise are applied at random with ``move``."""
    images, owners = data.inputs[indices].permute(0, 3, 1, 2).float() / 127.5 - 1, data.owners[indices]
    labels = data.labels[indices].long()
    if move:
        b, device = len(indices), indices.device
        for turn in (lambda t: t.flip(-1), lambda t: t.flip(-2), lambda t: t.transpose(-1, -2)):
            chosen = torch.rand(b, device=device) < 0.5
            images = torch.where(chosen.view(-1, 1, 1, 1), turn(images), images)
            owners = torch.where(chosen.view(-1, 1, 1), turn(owners), owners)
        contrast = torch.empty(b, 1, 1, 1, device=device).uniform_(0.85, 1.1)
        shift = torch.empty(b, 3, 1, 1, device=device).uniform_(-0.08, 0.08)
        images = (images * contrast + shift + 0.03 * torch.randn_like(images)).clamp(-1, 1)
    return SceneBatch(images.contiguous(), owners, labels[..., 0], labels[..., 1], labels[..., 0] >= 0)


def places_of(boxes: Tensor, size: int) -> Tensor:
    """Place of each box, as `vitrail.data.captions.object_places`, shape (b, 4)."""
    thirds = ((boxes[..., :2] + boxes[..., 2:]) * 3 // (2 * size)).clamp_max(2)
    return thirds[..., 1] * 3 + thirds[..., 0]


# --- captions ---------------------------------------------------------------------------------------------------------


def caption_table() -> Tensor:
    """Encoded captions of all templates, shapes, colours and places, the last of each unnamed; (captions, length).

    The caption of template t, shape s, colour c and place p is row ((t·13 + s)·7 + c)·10 + p.
    """
    parts = itertools.product(range(len(TEMPLATES)), range(SHAPES + 1), range(COLOURS + 1), range(PLACES + 1))
    texts = [
        str(Caption(s if s < SHAPES else None, c if c < COLOURS else None, p if p < PLACES else None, t))
        for t, s, c, p in parts
    ]
    return torch.from_numpy(encode_captions(texts))


def caption_rows(template: Tensor, shape: Tensor, colour: Tensor, place: Tensor) -> Tensor:
    """Rows of `caption_table`."""
    return ((template * (SHAPES + 1) + shape) * (COLOURS + 1) + colour) * (PLACES + 1) + place


def attribute_targets(batch: SceneBatch, coverage: Tensor) -> list[Tensor]:
    """Shares of each shape and of each colour in every patch, the last one for none; (b, patches, 13) and (…, 7)."""
    found = []
    for attribute, count in ((batch.shapes, SHAPES), (batch.colours, COLOURS)):
        of_object = F.one_hot(attribute.where(batch.present, count), count + 1).float()
        none = F.one_hot(torch.full((), count, device=coverage.device), count + 1).float()
        found.append(coverage[..., :-1] @ of_object + coverage[..., -1:] * none)
    return found


def attribute_loss(logits: Sequence[Tensor], targets: Sequence[Tensor]) -> Tensor:
    """Cross-entropy of the shape and of the colour of patches; logits of several blocks are joined over the batch."""
    total = logits[0].new_zeros((), dtype=torch.float32)
    for one, target in zip(logits, targets, strict=True):
        repeated = target.repeat(len(one) // len(target), 1, 1)
        total = total + F.cross_entropy(one.float().flatten(0, 1), repeated.flatten(0, 1))
    return total


def clip_loss(data: WorldData, hidden: float, blended: float) -> Loss:
    """Cross-entropy between images and captions in both directions, plus shape and colour of each patch.

    A caption is right for every image that has an object it describes. The targets are shared by the right captions, in
    proportion to the visible part of their objects.

    Args:
        data: The rendered scenes.
        hidden: Fraction of the scenes in which patches are hidden from the readout.
        blended: Fraction of the scenes that are blended with the next one in the batch.
    """
    table = caption_table().to(data.inputs.device)

    def loss(net: TrainableCLIP, indices: Tensor) -> Tensor:
        batch, device = select_scenes(data, indices), indices.device
        coverage, present = batch.coverage(), batch.present
        places = places_of(batch.boxes(), batch.owners.shape[-1])
        attributes = torch.stack([batch.shapes, batch.colours, places]).clamp_min(0)  # (3, b, 4)
        limits = (SHAPES, COLOURS, PLACES)
        named = torch.rand(attributes.shape, device=device) < torch.stack(
            [torch.full((), share, device=device) for share in (0.85, 0.6, 0.45)]
        ).view(3, 1, 1)
        named = torch.cat([named[:1] | ~named.any(0, keepdim=True), named[1:]])
        captions = torch.stack([a.where(n, m) for a, n, m in zip(attributes, named, limits, strict=True)]).flatten(1)
        template = torch.randint(0, len(TEMPLATES), captions.shape[1:], device=device)
        texts = table[caption_rows(template, *captions)]
        fits = present[..., None]
        for a, words, m in zip(attributes, captions, limits, strict=True):
            fits = fits & ((words == m) | (a[..., None] == words))  # (b, 4, captions)
        chance = torch.rand(len(indices), 1, device=device)
        partly, visible = hide_patches(present.float(), coverage)
        weights = torch.where(chance < hidden, partly, present.float())
        visible = visible | (chance >= hidden)
        right = (fits * weights[..., None]).sum(1) * present.flatten()
        images = batch.images
        targets = attribute_targets(batch, coverage)
        if blended:
            amount = torch.where(chance > 1 - blended, torch.rand_like(chance), 1.0)
            right = right.roll(1, 0).lerp(right, amount)
            images = images.roll(1, 0).lerp(images, amount[..., None, None])
            targets = [t.roll(1, 0).lerp(t, amount[..., None]) for t in targets]
        with autocast(device):
            image, shape_logits, colour_logits = net.embed_images(images, visible)
            text = F.normalize(net.get_text_features(texts).float(), dim=-1)
        logits = net.logit_scale.clamp_max(3.4).exp() * image @ text.T
        logits = logits.masked_fill(~present.flatten(), -1e4)
        to_text = _soft_cross_entropy(logits, right)
        to_image = _soft_cross_entropy(logits.T, right.T)
        return to_text + 0.5 * to_image + attribute_loss((shape_logits, colour_logits), targets)

    return loss


def _soft_cross_entropy(logits: Tensor, weights: Tensor) -> Tensor:
    """Cross-entropy with unnormalised targets; rows without targets do not count."""
    total = weights.sum(1, keepdim=True)
    terms = -(weights / total.clamp_min(1e-6) * logits.log_softmax(1)).sum(1)
    counts = (total[:, 0] > 0).float()
    return (terms * counts).sum() / counts.sum().clamp_min(1)


# --- boxes ------------------------------------------------------------------------------------------------------------


def generalised_iou(a: Tensor, b: Tensor) -> Tensor:
    """Generalised intersection over union of boxes x0, y0, x1, y1, shapes broadcast to (…, 4)."""
    low, high = torch.maximum(a[..., :2], b[..., :2]), torch.minimum(a[..., 2:], b[..., 2:])
    common = (high - low).clamp_min(0).prod(-1)
    areas = [(x[..., 2:] - x[..., :2]).clamp_min(0).prod(-1) for x in (a, b)]
    union = areas[0] + areas[1] - common
    hull = (torch.maximum(a[..., 2:], b[..., 2:]) - torch.minimum(a[..., :2], b[..., :2])).prod(-1)
    return common / union.clamp_min(1e-6) - (hull - union) / hull.clamp_min(1e-6)


def corners(boxes: Tensor) -> Tensor:
    """x0, y0, x1, y1 from centre, width and height, shape (…, 4)."""
    return torch.cat([boxes[..., :2] - boxes[..., 2:] / 2, boxes[..., :2] + boxes[..., 2:] / 2], -1)


def match_queries(logits: Tensor, predicted: Tensor, shapes: Tensor, boxes: Tensor, orders: Tensor) -> Tensor:
    """The query of each object with the lowest total cost, found among all assignments; shape (b, 4).

    Args:
        logits: Shape (b, queries, classes + 1).
        predicted: Corners, shape (b, queries, 4).
        shapes: Class of each object, −1 for none, shape (b, 4).
        boxes: Corners of the objects, shape (b, 4, 4).
        orders: All assignments of queries to objects, shape (assignments, 4).
    """
    classes = shapes.clamp_min(0)[:, None].expand(-1, logits.shape[1], -1)
    cost = -logits.softmax(-1).gather(2, classes)
    cost = cost + 5 * (predicted[:, :, None] - boxes[:, None]).abs().sum(-1)
    cost = (cost - 2 * generalised_iou(predicted[:, :, None], boxes[:, None])) * (shapes >= 0)[:, None]
    columns = torch.arange(shapes.shape[1], device=shapes.device)
    return orders[cost[:, orders, columns].sum(-1).argmin(1)]


def box_loss(data: WorldData) -> Loss:
    """Classes and boxes of matched queries after every block of the decoder, plus the class of each patch."""
    device = data.inputs.device
    orders = torch.tensor(list(itertools.permutations(range(6), OBJECTS)), device=device)
    class_weights = torch.ones(SHAPES + 1, device=device)
    class_weights[-1] = 0.3

    def loss(net: TrainableDetector, indices: Tensor) -> Tensor:
        batch = select_scenes(data, indices)
        present, boxes = batch.present, batch.boxes().float() / batch.owners.shape[-1]
        with autocast(indices.device):
            found, patch_logits = net.forward_all(batch.images)
        shape_of = F.one_hot(batch.shapes.where(present, SHAPES), SHAPES + 1).float()
        coverage = batch.coverage()
        target = coverage[..., :-1] @ shape_of
        target = torch.cat([target[..., :-1], 1 - target[..., :-1].sum(-1, keepdim=True)], -1)
        repeated = target.repeat(len(patch_logits) // len(target), 1, 1)
        total = F.cross_entropy(patch_logits.float().flatten(0, 1), repeated.flatten(0, 1))
        for one in found:
            logits, predicted = one["logits"].float(), corners(one["pred_boxes"].float())
            with torch.no_grad():
                query = match_queries(logits, predicted, batch.shapes, boxes, orders)
            classes = torch.full(logits.shape[:2], SHAPES, device=indices.device)
            classes = classes.scatter(1, query, batch.shapes.where(present, SHAPES))
            total = total + F.cross_entropy(
                logits.transpose(1, 2), classes, class_weights, label_smoothing=LABEL_SMOOTHING
            )
            chosen = predicted.gather(1, query[..., None].expand(-1, -1, 4))
            box_terms = 5 * (chosen - boxes).abs().sum(-1) + 2 * (1 - generalised_iou(chosen, boxes))
            total = total + (box_terms * present).sum() / present.sum()
        return total

    return loss


# --- pixels -----------------------------------------------------------------------------------------------------------


def pixel_loss(data: WorldData) -> Loss:
    """Cross-entropy of the class of each cell."""

    def loss(net: TrainableSegmenter, indices: Tensor) -> Tensor:
        batch = select_scenes(data, indices)
        with autocast(indices.device):
            logits = net(batch.images)["logits"]
        step = batch.owners.shape[-1] // logits.shape[-1]
        classes = batch.classes_of_owners(batch.shapes, SHAPES)[:, ::step, ::step]
        return F.cross_entropy(logits.float(), classes, label_smoothing=LABEL_SMOOTHING)

    return loss


# --- videos and spectrograms ------------------------------------------------------------------------------------------


def flip_classes(count: int, swaps: Sequence[tuple[int, int]], device: torch.device) -> Tensor:
    """Class of each class after a flip, with one more for none, shape (count + 1,)."""
    table = torch.arange(count + 1, device=device)
    for a, b in swaps:
        table[a], table[b] = b, a
    return table


def sequence_loss(
    data: WorldData, patch: Sequence[int], flips: Sequence[tuple[int, Sequence[tuple[int, int]]]], hidden: float,
    blended: float,
) -> Loss:  # fmt: skip
    """Cross-entropy of the classes, in proportion to their visible parts, plus that of the class of each patch.

    Args:
        data: The rendered videos or spectrograms.
        patch: Size of a patch along each axis of the classes of pixels.
        flips: Axes of the classes of pixels, counted from the end, that are flipped in half of the examples, each with
            the pairs of classes that it swaps.
        hidden: Fraction of the examples in which patches are hidden from the readout.
        blended: Fraction of the examples that are blended with the next one in the batch.
    """
    count, device = data.labels.shape[1], data.inputs.device
    tables = [flip_classes(count, swaps, device) for _, swaps in flips]
    pool = F.avg_pool3d if len(patch) == 3 else F.avg_pool2d

    def loss(net: TrainableVideoViT | TrainableSpectrogramViT, indices: Tensor) -> Tensor:
        inputs, owners = sequence_inputs(data.inputs[indices]), data.owners[indices].long()
        labels = data.labels[indices]
        axes = (-1,) * (owners.dim() - 1)
        for (axis, _), table in zip(flips, tables, strict=True):
            chosen = torch.rand(len(indices), device=device) < 0.5
            inputs = torch.where(chosen.view(-1, *[1] * (inputs.dim() - 1)), inputs.flip(axis), inputs)
            owners = torch.where(chosen.view(-1, *[1] * len(axes)), table[owners.flip(axis)], owners)
            labels = torch.where(chosen[:, None], labels[:, table[:-1]], labels)
        scale = torch.empty(len(indices), *[1] * (inputs.dim() - 1), device=device).uniform_(0.85, 1.1)
        inputs = (inputs * scale + 0.03 * torch.randn_like(inputs)).clamp(-1, 1)
        classes = torch.arange(count + 1, device=device).view(1, -1, *[1] * len(axes))
        coverage = pool((owners[:, None] == classes).float(), tuple(patch)).flatten(2).transpose(1, 2)
        chance = torch.rand(len(indices), 1, device=device)
        partly, visible = hide_patches(labels, coverage)
        labels, visible = torch.where(chance < hidden, partly, labels), visible | (chance >= hidden)
        if blended:
            amount = torch.where(chance > 1 - blended, torch.rand_like(chance), 1.0)
            labels, coverage = (
                labels.roll(1, 0).lerp(labels, amount), coverage.roll(1, 0).lerp(coverage, amount[..., None])
            )  # fmt: skip
            inputs = inputs.roll(1, 0).lerp(inputs, amount.view(-1, *[1] * (inputs.dim() - 1)))
        with autocast(device):
            logits, patch_logits = net.forward_with_patches(inputs, visible)
        repeated = coverage.repeat(len(patch_logits) // len(coverage), 1, 1)
        patch_term = F.cross_entropy(patch_logits.float().flatten(0, 1), repeated.flatten(0, 1))
        return F.cross_entropy(logits.float(), smooth_labels(labels, LABEL_SMOOTHING)) + patch_term

    return loss


def sequence_inputs(values: Tensor) -> Tensor:
    """Videos of bytes, shape (b, frames, h, w, 3), or spectrograms as inputs of their models, from -1 to 1."""
    values = values.permute(0, 1, 4, 2, 3) if values.dim() == 5 else values
    return values.contiguous().float() / 127.5 - 1
