"""Cases of targets other than classes: prompts and boxes of one image, and the memory of videos.

The times are those of the process on its processor, which other processes on the machine do not change much.
"""

from __future__ import annotations

import json
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from measuring import Calls, Run
from torch import Tensor, nn

import vitrail
from vitrail.models.plain_detector import PlainDetector
from vitrail.targets import box, prompt

METHODS = ("transformer_mm", "grad_rollout", "leadlight", "gradient_x_input")
#: Memory of one explanation of a video, in a process of its own: frames and method, bytes on standard output.
MEMORY = "from named_targets import video_peak; import sys; print(video_peak(int(sys.argv[1]), sys.argv[2]))"


def dual_encoder(tiny: bool) -> nn.Module:
    """A CLIP of Hugging Face with random weights: ViT-S/16 at 224 pixels, or a small one."""
    import transformers

    layers, width = (2, 64) if tiny else (12, 384)
    sizes = {"hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": width // 64 or 1,
             "intermediate_size": 4 * width}  # fmt: skip
    vision = sizes | {"image_size": 64 if tiny else 224, "patch_size": 16}
    text = sizes | {"vocab_size": 60, "num_hidden_layers": 2, "max_position_embeddings": 16, "eos_token_id": 2}
    config = transformers.CLIPConfig(vision_config=vision, text_config=text, projection_dim=64)
    return transformers.CLIPModel(config).eval()


def processor_seconds(calls: Calls, repeats: int) -> dict[str, float]:
    """Median processor time of each call, measured in turns."""
    found: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        call()
    for _ in range(repeats):
        for name, call in calls.items():
            started = time.process_time()
            call()
            found[name].append(time.process_time() - started)
    return {name: statistics.median(times) for name, times in found.items()}


def ratios(seconds: dict[str, float]) -> dict[str, Any]:
    """Seconds and ratios to the gradient of the bare model at the image."""
    bare = seconds["bare F+Bx"]
    return {name: {"seconds": value, "over_F+Bx": value / bare} for name, value in seconds.items()}


def gradient_at_image(model: nn.Module, images: Tensor, value: Any, **others: Tensor) -> None:
    """Forward pass and the gradient of one value at the image alone."""
    model.requires_grad_(False)
    leaf = images.detach().requires_grad_()
    torch.autograd.grad(value(model(pixel_values=leaf, **others)).sum(), leaf)


def named_targets(run: Run, *, methods: tuple[str, ...] = METHODS) -> dict[str, Any]:
    """One image with one prompt, and with one and ten boxes: processor time over the gradient at the image."""
    repeats = run.repeats or 5
    size = 64 if run.tiny else 224
    images = torch.randn(1, 3, size, size, device=run.device)
    words = torch.tensor([[1, 5, 6, 7, 2]], device=run.device)
    clip = dual_encoder(run.tiny).to(run.device)
    given = {"pixel_values": images, "input_ids": words}
    calls: Calls = {"bare F+Bx": lambda: gradient_at_image(clip, images, lambda o: o.logits_per_image, input_ids=words)}
    for method in methods:
        calls[method] = lambda m=method: vitrail.explain(clip, given, m, target=prompt(0))  # type: ignore[misc]
    results = {"one prompt": ratios(processor_seconds(calls, repeats))}
    run.save(results)
    shape = (64, 2, 1) if run.tiny else (384, 6, 6)
    detector = PlainDetector(size, 16, shape[0], shape[1], shape[2], heads=6 if shape[0] == 384 else 4, queries=10)
    detector = detector.eval().to(run.device)
    for count in (1, 10):
        row = [[box(q, label=1) for q in range(count)]]

        def bare(count: int = count) -> None:
            gradient_at_image(detector, images, lambda o: o["logits"][:, :count, 1])

        calls = {"bare F+Bx": bare}
        for method in methods:
            calls[method] = lambda m=method, r=row: vitrail.explain(detector, images, m, target=r)  # type: ignore[misc]
        results[f"{count} boxes"] = ratios(processor_seconds(calls, repeats))
        run.save(results)
    return results


def video_peak(frames: int, method: str) -> int:
    """Peak memory of a process that explains one video, above that before the call, in bytes."""
    import transformers

    config = transformers.VideoMAEConfig(
        image_size=112, patch_size=16, num_frames=frames, hidden_size=96, num_hidden_layers=4, num_attention_heads=4,
        intermediate_size=192, num_labels=5,
    )  # fmt: skip
    model = transformers.VideoMAEForVideoClassification(config).eval()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    vitrail.explain(model, torch.randn(1, frames, 3, 112, 112), method, target=1)
    return 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)


def video_memory(
    run: Run, *, frames: tuple[int, ...] = (8, 16, 32), methods: tuple[str, ...] = (*METHODS, "attnlrp")
) -> dict[str, Any]:
    """Peak memory of one explanation of a video of 8, 16 and 32 frames, each in a process of its own."""
    results: dict[str, Any] = {}
    for method in methods[: 1 if run.tiny else None]:
        results[method] = {}
        for count in frames[: 1 if run.tiny else None]:
            command = [sys.executable, "-c", MEMORY, str(count), method]
            done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parent)  # noqa: S603
            results[method][str(count)] = json.loads(done.stdout.splitlines()[-1])
            run.save(results)
    return results
