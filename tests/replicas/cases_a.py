"""Which replica answers for which method as a user types it: gradients of attention, of features and of pixels."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from tests.replicas import (
    agcam,
    attattr,
    attcat,
    bi_attn,
    cdam,
    grad_eclip,
    grad_rollout,
    gradcam_features,
    gradsam,
    input_gradients,
    legrad,
    tam,
)
from tests.replicas.vit import Pass


def at_pixels(method: Callable[..., Tensor], **options: object) -> Callable[[Pass, Tensor], Tensor]:
    """Call a method that starts from the pixels with the model and the images of a pass."""
    return lambda p, c: method(p.images, p.model, c, **options)


CASES_A: dict[str, Callable[[Pass, Tensor], Tensor]] = {
    "gradcam_features": gradcam_features.replica,
    "gradcam_features:score=prob": lambda p, c: gradcam_features.replica(p, c, score="prob"),
    "gradcam_features:block=1": lambda p, c: gradcam_features.replica(p, c, blocks=(1,)),
    "gradcam_features:block=-2+0+3": lambda p, c: gradcam_features.replica(p, c, blocks=(-2, 0, 3)),
    "gradcam_features:eigen=true": lambda p, c: gradcam_features.replica(p, c, eigen=True),
    "gradcam_features:eigen=true,block=2+3,score=prob": lambda p, c: gradcam_features.replica(
        p, c, score="prob", blocks=(2, 3), eigen=True
    ),
    "grad_eclip": grad_eclip.replica,
    "grad_eclip:similarity=false": lambda p, c: grad_eclip.replica(p, c, similarity=False),
    "grad_eclip:blocks=3,score=prob": lambda p, c: grad_eclip.replica(p, c, blocks=3, score="prob"),
    "grad_rollout": grad_rollout.replica,
    "grad_rollout:discard=0.5": lambda p, c: grad_rollout.replica(p, c, discard=0.5),
    "grad_rollout:discard=0": lambda p, c: grad_rollout.replica(p, c, discard=0.0),
    "gradsam": gradsam.replica,
    "gradsam:score=prob": lambda p, c: gradsam.replica(p, c, score="prob"),
    "attcat": attcat.replica,
    "attcat:query=readout": lambda p, c: attcat.replica(p, c, query="readout"),
    "attcat:sign=positive": lambda p, c: attcat.replica(p, c, sign="positive"),
    "attcat:sign=abs": lambda p, c: attcat.replica(p, c, sign="abs"),
    "attcat:query=readout,sign=abs,score=prob": lambda p, c: attcat.replica(p, c, "readout", "abs", "prob"),
    "agcam": agcam.replica,
    "agcam:score=prob": lambda p, c: agcam.replica(p, c, score="prob"),
    "tam": tam.replica,
    "tam:start=1,steps=5": lambda p, c: tam.replica(p, c, start=1, steps=5),
    "tam:start=0,steps=3,score=prob": lambda p, c: tam.replica(p, c, start=0, steps=3, score="prob"),
    "tam:start=1,steps=5,integral=false": lambda p, c: tam.replica(p, c, start=1, steps=5, integral=False),
    "tam:start=1,steps=5,first_state=true": lambda p, c: tam.replica(p, c, start=1, steps=5, first_state=True),
    "bi_attn:steps=4": lambda p, c: bi_attn.replica(p, c, steps=4),
    "bi_attn:head,start=1,steps=4": lambda p, c: bi_attn.replica(p, c, "head", start=1, steps=4),
    "bi_attn:head,start=0,feedback=false": lambda p, c: bi_attn.replica(p, c, "head", start=0, feedback=False),
    "bi_attn:head,start=0,steps=3,score=prob": lambda p, c: bi_attn.replica(p, c, start=0, steps=3, score="prob"),
    "bi_attn:token,steps=4": lambda p, c: bi_attn.replica(p, c, "token", steps=4),
    "bi_attn:token,start=1,steps=4": lambda p, c: bi_attn.replica(p, c, "token", start=1, steps=4),
    "bi_attn:token,start=0,feedback=false": lambda p, c: bi_attn.replica(p, c, "token", start=0, feedback=False),
    "legrad": legrad.replica,
    "legrad:blocks=1": lambda p, c: legrad.replica(p, c, blocks=1),
    "legrad:blocks=4": lambda p, c: legrad.replica(p, c, blocks=4),
    "legrad:pool=mean": lambda p, c: legrad.replica(p, c, pool="mean"),
    "legrad:blocks=3,pool=mean,score=prob": lambda p, c: legrad.replica(p, c, blocks=3, pool="mean", score="prob"),
    "cdam": cdam.replica,
    "cdam:score=prob": lambda p, c: cdam.replica(p, c, score="prob"),
    "cdam:block=1": lambda p, c: cdam.replica(p, c, block=1),
    "attattr:steps=4": lambda p, c: attattr.replica(p, c, steps=4),
    "attattr:steps=4,start=1": lambda p, c: attattr.replica(p, c, steps=4, start=1),
    "attattr:steps=2,start=0,score=prob": lambda p, c: attattr.replica(p, c, steps=2, start=0, score="prob"),
    "gradient_x_input": at_pixels(input_gradients.gradient_x_input),
    "gradient_x_input:reduce=abs": at_pixels(input_gradients.gradient_x_input, reduce="abs"),
    "gradient_x_input:reduce=max": at_pixels(input_gradients.gradient_x_input, reduce="max"),
    "gradient_x_input:score=prob": at_pixels(input_gradients.gradient_x_input, score="prob"),
    "integrated_gradients:steps=4": at_pixels(input_gradients.integrated_gradients, steps=4),
    "integrated_gradients:steps=4,reduce=abs": at_pixels(input_gradients.integrated_gradients, steps=4, reduce="abs"),
    "integrated_gradients:steps=3,rule=midpoint": at_pixels(
        input_gradients.integrated_gradients, steps=3, rule="midpoint"
    ),
    "integrated_gradients:steps=5,rule=ends": at_pixels(input_gradients.integrated_gradients, steps=5, rule="ends"),
    "integrated_gradients:steps=3,baseline=0.5": at_pixels(input_gradients.integrated_gradients, steps=3, baseline=0.5),
    "smoothgrad:samples=3": at_pixels(input_gradients.smoothgrad, samples=3),
    "smoothgrad:samples=3,reduce=sum": at_pixels(input_gradients.smoothgrad, samples=3, reduce="sum"),
    "smoothgrad:samples=2,sigma=0.05,seed=7,reduce=max": at_pixels(
        input_gradients.smoothgrad, samples=2, sigma=0.05, seed=7, reduce="max"
    ),
}
