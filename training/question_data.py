"""Render scenes with questions in parallel. Questions are asked about all eight symmetries of every scene."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.random import Generator, default_rng
from torch import Tensor

from training.recipe import Clock
from training.runtime import logger, parallel_map
from training.world_data import JOB, ROWS, WorldData
from vitrail.data.questions import END, PAD, QUESTION_KINDS, QUESTION_LENGTH, START, Question, encode_question
from vitrail.data.questions import questions_about as ask
from vitrail.data.shapes import bounding_box

#: Questions that are drawn for a scene in one of its symmetries, and the probability of each kind.
QUESTIONS = 8
SHARES = {"colour": 0.3, "shape": 0.25, "relation": 0.25, "count": 0.08, "list": 0.12}
SYMMETRIES = 8


@dataclass(frozen=True)
class QuestionData:
    """Scenes with encoded questions and answers.

    Attributes:
        scenes: The rendered scenes.
        texts: Numbers of words: start, question, answer, end, padding; uint8, shape (n, 8, questions, length). The
            second axis is the symmetry: 1 for a flip from left to right, 2 from top to bottom, 4 for a transposition
            after both, added up.
        kinds: Index of each question's kind in ``QUESTION_KINDS``, uint8, shape (n, 8, questions).
    """

    scenes: WorldData
    texts: Tensor
    kinds: Tensor

    def to(self, device: torch.device) -> QuestionData:
        """Move the tensors to a device."""
        return QuestionData(self.scenes.to(device), self.texts.to(device), self.kinds.to(device))


def turned_boxes(boxes: np.ndarray[Any, Any], symmetry: int) -> np.ndarray[Any, Any]:
    """Boxes as shares of the image, shape (objects, 4), after one of the eight symmetries."""
    x0, y0, x1, y1 = boxes.T
    if symmetry & 1:
        x0, x1 = 1 - x1, 1 - x0
    if symmetry & 2:
        y0, y1 = 1 - y1, 1 - y0
    return np.stack([y0, x0, y1, x1] if symmetry & 4 else [x0, y0, x1, y1], 1)


def draw_questions(rng: Generator, questions: Sequence[Question], count: int) -> list[Question]:
    """Draw questions: first the kind, among those that the scene has, then one of them."""
    by_kind = {kind: [q for q in questions if q.kind == kind] for kind in QUESTION_KINDS}
    kinds = [kind for kind in QUESTION_KINDS if by_kind[kind]]
    shares = np.array([SHARES[kind] for kind in kinds])
    chosen = rng.choice(len(kinds), count, p=shares / shares.sum())
    return [by_kind[kinds[k]][int(rng.integers(len(by_kind[kinds[k]])))] for k in chosen]


def _job(split: str, indices: Sequence[int]) -> tuple[np.ndarray[Any, Any], ...]:
    images, owners, labels = ROWS["scenes"](split, indices, False)
    texts = np.full((len(indices), SYMMETRIES, QUESTIONS, QUESTION_LENGTH), PAD, np.uint8)
    kinds = np.zeros((len(indices), SYMMETRIES, QUESTIONS), np.uint8)
    for row, index in enumerate(indices):
        rng = default_rng([index, len(split)])
        count = int((labels[row, :, 0] >= 0).sum())
        shapes, colours = labels[row, :count].T.tolist()
        boxes = np.array([bounding_box(owners[row] == k) for k in range(count)]) / images.shape[1]
        for symmetry in range(SYMMETRIES):
            drawn = draw_questions(rng, ask(shapes, colours, turned_boxes(boxes, symmetry)), QUESTIONS)
            for k, question in enumerate(drawn):
                words = [START, *encode_question(question.text), *encode_question(question.answer), END]
                texts[row, symmetry, k, : len(words)] = words
                kinds[row, symmetry, k] = QUESTION_KINDS.index(question.kind)
    return images, owners, labels, texts, kinds


def render_questions(split: str, count: int, workers: int, seconds: float = float("inf")) -> QuestionData:
    """Render scenes of one to four objects with questions, until all are done or the time limit is reached."""
    start = Clock.now()
    jobs = [range(first, min(first + JOB, count)) for first in range(0, count, JOB)]
    parts = []
    with contextlib.closing(parallel_map(partial(_job, split), jobs, workers)) as results:
        for part in results:
            parts.append(part)
            if Clock.now() - start > seconds:
                break
    images, owners, labels, texts, kinds = (
        torch.from_numpy(np.concatenate(column)) for column in zip(*parts, strict=True)
    )
    description = f"{len(images)} scenes with questions, {split} split, every fourth a pair"
    logger.info("%s rendered in %.1f s", description, Clock.now() - start)
    return QuestionData(WorldData(images, owners, labels, description), texts, kinds)
