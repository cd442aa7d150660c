"""A folder of FunnyBirds in the layout of the authors, written here."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from vitrail.data import open_dataset
from vitrail.data.funnybirds.bird_folder import FunnyBirds, save_birds
from vitrail.data.funnybirds.birds import (
    count_objects,
    draw_bird_classes,
    draw_bird_scenes,
    list_interventions,
    part_subsets,
)
from vitrail.data.funnybirds.labels import FIRST_OBJECT, LABELS
from vitrail.errors import DataError, InputError
from vitrail.scores.funnybirds import BirdResponses

CLASSES = draw_bird_classes(3)
SCENES = draw_bird_scenes(CLASSES, 2, removed=False, seed=4)


def write_authors_folder(root: Path) -> None:
    """Files as the authors' scripts write them: RGBA images, colours of their scene page, class indices in entries."""
    (root / "classes.json").write_text(json.dumps([{"class_idx": i, "parts": own} for i, own in enumerate(CLASSES)]))
    (root / "dataset_test.json").write_text(json.dumps(SCENES))
    for index, scene in enumerate(SCENES):
        for kind in ("test", "test_part_map", "test_interventions"):
            (root / kind / str(scene["class_idx"])).mkdir(parents=True, exist_ok=True)
        name = f"{scene['class_idx']}/{index:06d}"
        Image.new("RGBA", (8, 6), (index, 2, 3, 255)).save(root / "test" / f"{name}.png")
        part_map = Image.new("RGBA", (8, 6), (0, 0, 0, 255))
        for x, colour in enumerate(
            [(255, 255, 253), (255, 0, 2), (0, 0, 255), (204, 204, 207), (170, 170, 170), (9, 9, 9)]
        ):
            part_map.putpixel((x, 1), (*colour, 255))
        part_map.save(root / "test_part_map" / f"{name}.png")
        changed = root / "test_interventions" / name / "background_interventions"
        changed.mkdir(parents=True)
        Image.new("RGBA", (8, 6), (50, index, 0, 255)).save(changed.parent / "body_beak_tail.png")
        Image.new("RGBA", (8, 6), (60, index, 0, 255)).save(changed.parent / "body_.png")
        Image.new("RGBA", (8, 6), (70, index, 0, 255)).save(changed / "2.png")


def test_the_authors_layout_is_read(tmp_path: Path) -> None:
    write_authors_folder(tmp_path)
    birds = open_dataset("funnybirds", tmp_path, split="test")
    assert isinstance(birds, FunnyBirds)
    assert birds.bird_classes == CLASSES
    assert len(birds) == 6
    sample = birds[3]
    assert (sample.id, sample.label, sample.image.size) == ("test-000003", 1, (8, 6))
    assert sample.image.getpixel((0, 0)) == (3, 2, 3)
    row = [LABELS["eye01"], LABELS["foot02"], LABELS["tail"], FIRST_OBJECT + 3, LABELS["body"], 0, 0, 0]
    assert birds.part_map(3)[1].tolist() == row
    assert sample.mask[1].tolist() == [1, 1, 1, 0, 1, 0, 0, 0]
    assert birds.intervention(3, ("tail", "beak")).getpixel((0, 0)) == (50, 3, 0)
    assert birds.intervention(3, ()).getpixel((0, 0)) == (60, 3, 0)
    assert birds.intervention(3, 2).getpixel((0, 0)) == (70, 3, 0)
    assert birds.classes[0].startswith("beak ")


def test_missing_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"classes\.json is missing"):
        FunnyBirds(tmp_path)
    write_authors_folder(tmp_path)
    with pytest.raises(DataError, match=r"body_eye\.png is missing"):
        FunnyBirds(tmp_path).intervention(0, ["eye"])
    (tmp_path / "classes.json").write_text(json.dumps([{"class_idx": 0, "parts": {"beak": 9}}]))
    with pytest.raises(DataError, match="expected a variant of each part"):
        FunnyBirds(tmp_path)


def test_what_is_saved_is_read_again(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    images = generator.integers(0, 256, (len(SCENES), 5, 7, 3), np.uint8)
    labels = generator.integers(0, FIRST_OBJECT + 34, (len(SCENES), 5, 7), np.uint8)
    kept = part_subsets()[11]
    save_birds(tmp_path, "train", CLASSES, SCENES, images, labels, {(1, kept): images[0], (1, 0): images[2]})
    birds = FunnyBirds(tmp_path, "train")
    assert birds.scenes == SCENES
    for index, sample in enumerate(birds):
        assert np.array_equal(np.asarray(sample.image), images[index])
        assert np.array_equal(birds.part_map(index), labels[index])
    assert np.array_equal(np.asarray(birds.intervention(1, kept)), images[0])
    assert np.array_equal(np.asarray(birds.intervention(1, 0)), images[2])
    with pytest.raises(DataError, match="none is 99"):
        save_birds(tmp_path, "train", CLASSES, SCENES, images, labels, {(0, 99): images[0]})


def test_a_folder_has_an_image_of_every_intervention(tmp_path: Path) -> None:
    """The loop that a model is evaluated with: every intervention is read, and stands where it belongs."""
    blank = np.zeros((len(SCENES), 4, 4, 3), np.uint8)
    interventions = list_interventions(SCENES)
    numbered = {own: np.full((4, 4, 3), [i // 256, i % 256, 0], np.uint8) for i, own in enumerate(interventions)}
    save_birds(tmp_path, "test", CLASSES, SCENES, blank, blank[..., 0], numbered)
    birds = FunnyBirds(tmp_path)
    logits = torch.stack([torch.tensor(birds.intervention(*own).getpixel((0, 0))).float() for own in interventions])
    responses = BirdResponses.of(birds.bird_classes, birds.scenes, logits)
    codes = responses.subsets[..., 0] * 256 + responses.subsets[..., 1]
    assert codes.flatten().tolist() == list(range(32 * len(SCENES)))
    assert (~responses.objects[..., 0].isnan()).sum(1).tolist() == [count_objects(scene) for scene in SCENES]
    assert responses.labels.tolist() == [0, 0, 1, 1, 2, 2]
    with pytest.raises(InputError, match="rows of logits"):
        BirdResponses.of(CLASSES, SCENES, logits[1:])
