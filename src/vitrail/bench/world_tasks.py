"""Tasks of the worlds: pairs of things in one input, a target for each, and where each lies.

Every example has two things, A and B: two objects, two movements or two tones. A map of target A should lie on A and
not on B. Targets are those of `vitrail.targets`, and classes by their index.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any
from zlib import crc32

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.data.captions import TEMPLATES, Caption, describe_objects, encode_captions
from vitrail.data.motions import render_motion
from vitrail.data.scenes import Scene, Scenes
from vitrail.data.shapes import SCENE_CLASSES
from vitrail.data.tones import render_tones
from vitrail.targets import box, prompt, region

Inputs = Tensor | dict[str, Tensor]
#: Rows and columns of the patches of scenes.
_PATCHES = (16, 16)


@dataclass(frozen=True, eq=False)
class WorldBatch:
    """Examples of a task with their targets and their ground truth.

    Attributes:
        inputs: What the model is called with.
        targets: The two targets of each example, as `vitrail.explain` takes them.
        masks: Where A and B lie in the input, shape (b, 2, *axes); among the words of the prompts, shape (b, 2, words).
        correct: Whether the model's own output is right for A and for B, shape (b, 2).
        cells: Cells of the input along each of its axes, which are removed one by one; those of the model's tokens.
        texts: The two prompts of each example where their words are explained, else None.
    """

    inputs: Inputs
    targets: list[list[Any]]
    masks: Tensor
    correct: Tensor
    cells: tuple[int, ...] = _PATCHES
    texts: list[list[str]] | None = None

    @property
    def candidates(self) -> Tensor | None:
        """Which words there are, of the same shape as ``masks``; None where the masks are of pixels."""
        if self.texts is None:
            return None
        counts = torch.tensor([[len(text.split()) for text in pair] for pair in self.texts])
        return torch.arange(self.masks.shape[-1]) < counts[..., None]

    def select(self, row: int) -> WorldBatch:
        """One of the examples."""
        at = slice(row, row + 1)
        inputs = {k: v[at] for k, v in self.inputs.items()} if isinstance(self.inputs, dict) else self.inputs[at]
        texts = None if self.texts is None else self.texts[at]
        return replace(self, inputs=inputs, targets=self.targets[at], masks=self.masks[at], correct=self.correct[at],
                       texts=texts)  # fmt: skip

    def on(self, device: str | torch.device) -> Inputs:
        """The inputs on a device."""
        if isinstance(self.inputs, dict):
            return {key: value.to(device) for key, value in self.inputs.items()}
        return self.inputs.to(device)


def _scenes(split: str, indices: Sequence[int]) -> list[Scene]:
    pairs = Scenes(split, 1 << 20, pairs=True, coloured=True)
    return [pairs[index] for index in indices]


def _images(scenes: Sequence[Scene]) -> Tensor:
    return torch.stack([scene.to_tensor() for scene in scenes])


def _masks(scenes: Sequence[Any]) -> Tensor:
    return torch.from_numpy(np.stack([scene.masks for scene in scenes]))


def _drawn(index: int, count: int) -> int:
    """A number below ``count`` for an example, whatever the distance of the examples that are chosen."""
    return crc32(f"{index}".encode()) % count


def _prompt(caption: Caption, index: int) -> str:
    """A prompt that names the shape, and the colour and the place in half of the examples each."""
    named = _drawn(index, 4)
    parts = (caption.colour if named & 1 else None, caption.place if named & 2 else None)
    return str(Caption(caption.shape, *parts, template=_drawn(index, len(TEMPLATES))))


@torch.no_grad()
def _prompt_found(model: nn.Module, images: Tensor, shapes: Sequence[Sequence[int]]) -> Tensor:
    """Whether the shapes of A and B are the two likeliest of all shapes, shape (b, 2)."""
    device = next(model.parameters()).device
    names = torch.from_numpy(encode_captions([str(Caption(shape)) for shape in range(len(SCENE_CLASSES))])).to(device)
    best = model(names, images.to(device))["logits_per_image"].topk(2).indices.cpu()
    found: Tensor = (best[:, None] == torch.tensor(shapes)[..., None]).any(-1)
    return found


def captions(model: nn.Module, split: str, indices: Sequence[int]) -> WorldBatch:
    """The image for a prompt: two objects, a prompt of each that names the shape and at times colour and place."""
    scenes = _scenes(split, indices)
    texts = [[_prompt(c, i) for c in describe_objects(s)] for i, s in zip(indices, scenes, strict=True)]
    images = _images(scenes)
    correct = _prompt_found(model, images, [scene.classes for scene in scenes])
    return WorldBatch(images, [[prompt(a), prompt(b)] for a, b in texts], _masks(scenes), correct)


def contrasts(model: nn.Module, split: str, indices: Sequence[int]) -> WorldBatch:
    """The image for the prompt of one object against that of the other one."""
    scenes = _scenes(split, indices)
    texts = [[_prompt(c, i) for c in describe_objects(s)] for i, s in zip(indices, scenes, strict=True)]
    images = _images(scenes)
    correct = _prompt_found(model, images, [scene.classes for scene in scenes])
    targets = [[prompt(a, against=b), prompt(b, against=a)] for a, b in texts]
    return WorldBatch(images, targets, _masks(scenes), correct)


def words(model: nn.Module, split: str, indices: Sequence[int]) -> WorldBatch:
    """The prompt for an image: "a picture of a star" or "there is a star", in which the last word names the object."""
    scenes = _scenes(split, indices)
    texts = [
        [str(Caption(c, template=1 + _drawn(i, 2))) for c in s.classes] for i, s in zip(indices, scenes, strict=True)
    ]
    images = _images(scenes)
    correct = _prompt_found(model, images, [scene.classes for scene in scenes])
    counts = torch.tensor([[len(text.split()) for text in pair] for pair in texts])
    named = torch.arange(int(counts.max())) == counts[..., None] - 1
    return WorldBatch(images, [[prompt(a), prompt(b)] for a, b in texts], named, correct, texts=texts)


def boxes(model: nn.Module, split: str, indices: Sequence[int]) -> WorldBatch:
    """The detection of each of two objects: the class score of the query whose box lies nearest to it."""
    scenes = _scenes(split, indices)
    images = _images(scenes)
    targets = [
        [box(nearest=corners.tolist(), label=shape) for corners, shape in zip(s.boxes, s.classes, strict=True)]
        for s in scenes
    ]
    shapes = torch.tensor([scene.classes for scene in scenes])
    with torch.no_grad():
        found = model(images.to(next(model.parameters()).device))["logits"].argmax(-1).cpu()
    correct = (found[:, None] == shapes[..., None]).any(-1)
    return WorldBatch(images, targets, _masks(scenes), correct)


def regions(model: nn.Module, split: str, indices: Sequence[int]) -> WorldBatch:
    """The pixels of each of two objects: the mean score of its class over them."""
    scenes = _scenes(split, indices)
    images, masks = _images(scenes), _masks(scenes)
    shapes = torch.tensor([scene.classes for scene in scenes])
    with torch.no_grad():
        predicted = model(images.to(next(model.parameters()).device))["logits"].argmax(1).cpu()
    step = images.shape[-1] // predicted.shape[-1]
    cells = masks[:, :, ::step, ::step].float()
    right = ((predicted[:, None] == shapes[..., None, None]) * cells).sum((2, 3)) / cells.sum((2, 3))
    targets = [[region(mask, label=shape) for mask, shape in zip(s.masks, s.classes, strict=True)] for s in scenes]
    return WorldBatch(images, targets, masks, right >= 0.5)


def _class_batch(
    model: nn.Module, inputs: Inputs, classes: list[list[int]], masks: Tensor, cells: tuple[int, ...]
) -> WorldBatch:
    values = inputs["input_values"] if isinstance(inputs, dict) else inputs
    with torch.no_grad():
        best = model(values.to(next(model.parameters()).device)).topk(2).indices.cpu()
    correct = (best[:, None] == torch.tensor(classes)[..., None]).any(-1)
    return WorldBatch(inputs, classes, masks, correct, cells)


def movements(model: nn.Module, split: str, indices: Sequence[int]) -> WorldBatch:
    """Two movements in a video: the object that moves so, in the frames in which it moves."""
    scenes = [render_motion(0, index, pairs=True, split=split) for index in indices]
    frames = torch.from_numpy(np.stack([scene.frames for scene in scenes])).permute(0, 1, 4, 2, 3).float() / 127.5 - 1
    classes, masks = [], []
    for scene in scenes:
        moving = [k for k, movement in enumerate(scene.movements) if movement is not None]
        event = np.zeros(len(scene.frames), np.bool_)
        event[scene.start : scene.stop] = True
        classes.append([int(scene.movements[k]) for k in moving])  # type: ignore[arg-type]
        masks.append(scene.masks[moving] & event[:, None, None])
    return _class_batch(model, frames.contiguous(), classes, torch.from_numpy(np.stack(masks)), (6, 8, 8))


def tones(model: nn.Module, split: str, indices: Sequence[int]) -> WorldBatch:
    """Two tones in a spectrogram: the time and frequency of the one that is named."""
    scenes = [render_tones(0, index, pairs=True, split=split) for index in indices]
    levels = torch.from_numpy(np.stack([scene.levels for scene in scenes])).float() / 127.5 - 1
    classes = [[int(kind) for kind in scene.tones] for scene in scenes]
    return _class_batch(model, {"input_values": levels}, classes, _masks(scenes), (16, 8))


#: From a model, a split and indices to a batch, for each task.
WORLD_TASKS: dict[str, Callable[[nn.Module, str, Sequence[int]], WorldBatch]] = {
    "captions": captions,
    "contrasts": contrasts,
    "words": words,
    "boxes": boxes,
    "regions": regions,
    "movements": movements,
    "tones": tones,
}


def maps_of_pairs(values: Tensor, batch: WorldBatch, grid: Sequence[int] | None) -> Tensor:
    """Maps of A and B at the resolution of the masks.

    Args:
        values: Relevance as `vitrail.explain` returns it: maps of the input, or scores of the tokens.
        batch: The examples.
        grid: Rows and columns of the model's tokens, with frames before them; for scores of tokens.

    Returns:
        Shape (b, 2, *axes), as the masks.
    """
    shape = batch.masks.shape[2:]
    if values.shape[2:] == shape:
        return values
    if values.dim() == 3 and grid is not None:
        cells = int(np.prod(grid))
        values = values[..., values.shape[-1] - cells :].reshape(*values.shape[:2], *grid)
    mode = {1: "nearest", 2: "bilinear", 3: "trilinear"}[len(shape)]
    return F.interpolate(
        values.float(), size=tuple(shape), mode=mode, align_corners=None if mode == "nearest" else False
    )


def scores_of_words(words: Sequence[Any], batch: WorldBatch) -> Tensor:
    """Scores of the words of both prompts, shape (b, 2, words); 0 behind the end of a prompt.

    Args:
        words: A `vitrail.text.WordRelevance` for each prompt, those of the first example first.
        batch: The examples.
    """
    scores = torch.zeros(len(words), batch.masks.shape[-1], dtype=torch.float64)
    for row, one in zip(scores, words, strict=True):
        row[: len(one.words)] = one.scores[0]
    return scores.view(-1, 2, scores.shape[-1])
