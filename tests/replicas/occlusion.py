"""Occlusion: how much of the class probability goes when a window of patches is covered."""

import torch
from torch import Tensor

from .rise import probability
from .vit import Classes, Pass


def replica(pass_: Pass, classes: Classes, window: int = 1, stride: int = 1, fill: float = 0.0) -> Tensor:
    """Every pixel gets the mean loss of probability over the windows that covered it.

    Args:
        pass_: The recorded forward pass.
        classes: One class per image.
        window: Side of the square window, in patches. Windows stay inside the grid.
        stride: Step between windows, in patches, down and across.
        fill: Value written into the window, in the normalised space of the input.

    Returns:
        Pixel relevance, shape b, height, width; 0 where no window came.
    """
    height, width = pass_.images.shape[-2:]
    gh, gw = pass_.grid
    ph, pw = height // gh, width // gw
    maps = []
    for image, c in enumerate(classes):
        pixels = pass_.images[image].detach()
        whole = probability(pass_, pixels[None], int(c))[0]
        loss = torch.zeros(height, width, dtype=torch.float64)
        times = torch.zeros(height, width, dtype=torch.float64)
        for row in range(0, gh - window + 1, stride):
            for column in range(0, gw - window + 1, stride):
                down = slice(row * ph, (row + window) * ph)
                across = slice(column * pw, (column + window) * pw)
                covered = pixels.clone()
                covered[:, down, across] = fill
                loss[down, across] += whole - probability(pass_, covered[None], int(c))[0]
                times[down, across] += 1
        maps.append(torch.where(times > 0, loss / times.clamp(min=1), torch.zeros_like(loss)))
    return torch.stack(maps)
