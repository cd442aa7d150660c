"""Labels that detectors read as texts, patches instead of images, and tokenizers by name."""

from __future__ import annotations

import pytest
import torch

import vitrail
from tests.targets.target_models import build, pixels, tokenizer
from vitrail.errors import InputError, TargetError
from vitrail.models import offline
from vitrail.targets import box, detections, prompt


def test_labels_of_owl_vit_are_texts():
    model, images = build("OwlViTForObjectDetection", "OwlViT"), pixels(2)
    row = [[box(3, label="a dog", processor=tokenizer()), box(3, label="cat", processor=tokenizer())]]
    e = vitrail.explain(model, images, "gradient_x_input", target=row)
    tokens = tokenizer()(["a dog", "cat"], padding="max_length", max_length=16, return_tensors="pt")
    ids, mask = tokens["input_ids"], tokens["attention_mask"]
    pixel_values = images.clone().requires_grad_()
    output = model(pixel_values=pixel_values, input_ids=ids.repeat(2, 1), attention_mask=mask.repeat(2, 1))
    for k in range(2):
        (gradient,) = torch.autograd.grad(output.logits[:, 3, k].sum(), pixel_values, retain_graph=True)
        expected = (gradient * images).sum(1)
        torch.testing.assert_close(e.grid[:, k], expected, rtol=1e-6, atol=1e-9)
    assert e.label(0, 1) == "cat, query 3"
    listed = detections(model, images, texts=["a dog", "cat"], processor=tokenizer(), count=16)
    assert {one.name for one in listed[0]} <= {"a dog", "cat"}
    assert len(listed[1]) == 16


@pytest.mark.slow
def test_labels_of_grounding_dino_are_tokens_of_one_caption():
    model, images = build("GroundingDinoForObjectDetection", "GroundingDino"), pixels(2)
    row = [[box(1, label="red dog", processor=tokenizer()), box(1, label="cat", processor=tokenizer())]]
    e = vitrail.explain(model, images, "gradient_x_input", target=row)
    tokens = tokenizer()("red dog . cat .", return_tensors="pt")  # <s> red dog . cat . </s>
    ids, mask = tokens["input_ids"].expand(2, -1), tokens["attention_mask"].expand(2, -1)
    with torch.no_grad():
        output = model(pixel_values=images, input_ids=ids, attention_mask=mask)
    leading = output.logits[:, 1, 1:3].argmax(1) + 1
    assert [row[0].pinned.label for row in e.named_targets] == leading.tolist()
    assert [row[1].pinned.label for row in e.named_targets] == [4, 4]


def test_siglip2_takes_patches_with_their_masks():
    model = build("Siglip2Model", "Siglip2")
    patches = torch.randn(2, 16, 192, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    inputs = {
        "pixel_values": patches, "pixel_attention_mask": torch.ones(2, 16).long(),
        "spatial_shapes": torch.tensor([[4, 4], [4, 4]]),
    }  # fmt: skip
    e = vitrail.explain(model, inputs, "gradient_x_input", target=prompt("a dog", "cat", processor=tokenizer()))
    ids = tokenizer()(["a dog", "cat"], padding="max_length", max_length=16, return_tensors="pt")["input_ids"]
    leaf = patches.clone().requires_grad_()
    scores = model(**inputs | {"pixel_values": leaf}, input_ids=ids).logits_per_image
    (gradient,) = torch.autograd.grad((scores[:, 0] - scores[:, 1]).sum(), leaf)
    expected = (gradient * patches).sum(-1)
    torch.testing.assert_close(e.grid[:, 0].flatten(1), expected, rtol=1e-6, atol=1e-9)


def test_tokenizers_by_name_and_by_processor(tmp_path):
    tokenizer().save_pretrained(tmp_path)
    model, images = build("CLIPModel", "Clip"), pixels(1)

    class Processor:
        def __init__(self):
            self.tokenizer = tokenizer()

    grids = [
        vitrail.explain(model, images, "gradient_x_input", target=prompt("a dog", processor=processor)).grid
        for processor in (str(tmp_path), Processor(), tokenizer())
    ]
    assert torch.equal(grids[0], grids[1])
    assert torch.equal(grids[0], grids[2])


@pytest.mark.parametrize(("processor", "message"), [
    ("no/such-name", "the tokenizer 'no/such-name' cannot be loaded"), (3, "processor= is a int"),
])  # fmt: skip
def test_tokenizers_that_are_none_are_refused(processor, message):
    with offline(), pytest.raises(InputError, match=message):
        vitrail.explain(build("CLIPModel", "Clip"), pixels(1), "rollout", target=prompt("a dog", processor=processor))


def test_labels_without_a_processor_are_class_names():
    with pytest.raises(TargetError, match="class names are unknown"):
        vitrail.explain(build("YolosForObjectDetection", "Yolos"), pixels(1), "rollout", target=box(1, label="cat"))
