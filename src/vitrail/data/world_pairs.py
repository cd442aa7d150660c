"""Pairs of the worlds as a data set: two objects, movements, tones or questions in every example."""

from __future__ import annotations

import numpy as np

from vitrail.data.motions import render_motion
from vitrail.data.recall import RECALL_TASKS, draw_recall
from vitrail.data.sample import BaseDataset, Sample
from vitrail.data.scenes import COUNTS, Scenes
from vitrail.data.tones import render_tones
from vitrail.errors import DataError

__all__ = ["WORLD_TASK_NAMES", "WorldPairs"]

CONTRAST = "_contrast"
"""What follows the name of a task of texts whose target is the answer minus the second candidate."""

WORLD_TASK_NAMES = (
    *("captions", "contrasts", "words", "boxes", "regions", "movements", "tones"),
    *("questions", "relations", "question_words"),
    *RECALL_TASKS,
    *(f"{task}{CONTRAST}" for task in RECALL_TASKS),
)
"""What is explained: prompts on the image, alone and against each other, and on the text side, detections, regions,
movements, tones, questions about one object, about two and on the text side, and the next word of texts, alone or
against a second candidate."""


class WorldPairs(BaseDataset):
    """Held-out examples of a world with two things in each, rendered on access. No files are needed.

    A sample shows the image, the first frame of the video, the spectrogram with time to the right, or the text with the
    passages that its next word comes from.

    Args:
        task: One of ``WORLD_TASK_NAMES``.
        split: "train", "val" or "test".
        count: Number of examples.

    Example:
        >>> pairs = WorldPairs("tones", count=3)
        >>> pairs.ids[2], pairs[2].image.size
        ('tones-test-000002', (128, 64))
    """

    name = "worlds"

    def __init__(self, task: str, split: str = "test", count: int = 500) -> None:
        if task not in WORLD_TASK_NAMES:
            raise DataError(f"unknown task {task!r}: use one of {', '.join(WORLD_TASK_NAMES)}")
        if split not in COUNTS:
            raise DataError(f"unknown split {split!r}: use one of {', '.join(COUNTS)}")
        self.task, self.split = task, split
        super().__init__(f"{task}-{split}-{index:06d}" for index in range(count))

    def _read(self, index: int) -> Sample:
        from PIL import Image

        task = self.task.removesuffix(CONTRAST)
        if task in RECALL_TASKS:
            prompt = draw_recall(0, index, task=task, split=self.split)[0]
            spans = tuple((place, place + 1) for place in prompt.source)
            return Sample(self.ids[index], text=" ".join(prompt.words), tokens=prompt.words, spans=spans)
        if self.task == "tones":
            levels = render_tones(0, index, pairs=True, split=self.split).levels
            return Sample(self.ids[index], Image.fromarray(np.ascontiguousarray(levels.T[::-1])))
        if self.task == "movements":
            return Sample(
                self.ids[index], Image.fromarray(render_motion(0, index, pairs=True, split=self.split).frames[0])
            )
        scenes = Scenes(self.split, len(self), pairs=True, coloured=True)
        return Sample(self.ids[index], Image.fromarray(scenes[index].image))
