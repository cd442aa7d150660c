"""Replicas of the relevance-propagation and perturbation methods, by the spec a user would type."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from tests.replicas import atman, gradient_lrp, iia, leadlight, lrp, occlusion, rise, scorecam, shapley, tis, vit_cx
from tests.replicas.vit import Classes, Pass

CASES_B: dict[str, Callable[[Pass, Classes], Tensor]] = {
    "lrp": lrp.full,
    "partial_lrp": lrp.partial,
    "transformer_attribution": lrp.transformer_attribution,
    "transformer_attribution:start=1": lambda p, c: lrp.transformer_attribution(p, c, start=1),
    "transformer_attribution:normalise=true": lambda p, c: lrp.transformer_attribution(p, c, normalise=True),
    "conservative_lrp": gradient_lrp.conservative_lrp,
    "conservative_lrp:gelu=identity": lambda p, c: gradient_lrp.conservative_lrp(p, c, gelu="identity"),
    "conservative_lrp:where=pixels": lambda p, c: gradient_lrp.conservative_lrp(p, c, where="pixels"),
    "attnlrp": lambda p, c: gradient_lrp.attnlrp_released(p, c, attention="shared"),
    "attnlrp:plain": gradient_lrp.attnlrp,
    "attnlrp:gamma_conv=0,gamma_linear=0,where=tokens": lambda p, c: gradient_lrp.attnlrp(
        p, c, gamma_conv=0.0, gamma_linear=0.0, where="tokens"
    ),
    "attnlrp:released": gradient_lrp.attnlrp_released,
    "attnlrp:where=tokens": lambda p, c: gradient_lrp.attnlrp_released(p, c, where="tokens", attention="shared"),
    "abslrp": gradient_lrp.abslrp,
    "occlusion": occlusion.replica,
    "occlusion:window=2": lambda p, c: occlusion.replica(p, c, window=2),
    "atman": atman.replica,
    "atman:factor=0.5,score=prob": lambda p, c: atman.replica(p, c, factor=0.5, score="prob"),
    "atman:similarity=0.3": lambda p, c: atman.replica(p, c, similarity=0.3),
    "rise:masks=20": lambda p, c: rise.replica(p, c, masks=20),
    "shapley:cell=2": shapley.replica,
    "shapley:cell=2,removal=fill": lambda p, c: shapley.replica(p, c, removal="fill"),
    "shapley:cell=2,removal=mask": lambda p, c: shapley.replica(p, c, removal="mask"),
    "iia:image_steps=2,steps=3": lambda p, c: iia.replica(p, c, [0.0, 0.5, 1.0], 3),
    "dix:steps=4": lambda p, c: iia.replica(p, c, [1.0], 4),
    "dix:steps=4,score=prob": lambda p, c: iia.replica(p, c, [1.0], 4, score="prob"),
    "tis:masks=10": tis.replica,
    "tis:masks=10,ratio=0.25,seed=1": lambda p, c: tis.replica(p, c, ratio=0.25, seed=1),
    "scorecam": scorecam.replica,
    "scorecam:scoring=official": lambda p, c: scorecam.replica(p, c, scoring="official"),
    "scorecam:scoring=softmax": lambda p, c: scorecam.replica(p, c, scoring="softmax"),
    "scorecam:block=1": lambda p, c: scorecam.replica(p, c, block=1),
    "scorecam:official,eigen=true": lambda p, c: scorecam.replica(p, c, scoring="official", eigen=True),
    "scorecam:softmax,eigen=true,block=-2": lambda p, c: scorecam.replica(p, c, "softmax", block=-2, eigen=True),
    "vit_cx:5,masks=all,block=1": lambda p, c: scorecam.replica(p, c, block=1),
    "vit_cx": lambda p, c: vit_cx.replica(p, c)[0],
    "vit_cx:released": lambda p, c: vit_cx.replica(p, c, mode="released")[0],
    "vit_cx:paper": lambda p, c: vit_cx.replica(p, c, mode="paper")[0],
    "vit_cx:1": lambda p, c: vit_cx.replica(p, c, variant=1)[0],
    "vit_cx:2,random_masks=20": lambda p, c: vit_cx.replica(p, c, variant=2, n_random=20)[0],
    "vit_cx:3": lambda p, c: vit_cx.replica(p, c, variant=3)[0],
    "vit_cx:4": lambda p, c: vit_cx.replica(p, c, variant=4)[0],
    "vit_cx:5": lambda p, c: vit_cx.replica(p, c, variant=5)[0],
    "vit_cx:draws=2": lambda p, c: vit_cx.replica(p, c, draws=2)[0],
    "vit_cx:features=attention": lambda p, c: vit_cx.replica(p, c, features="attention")[0],
    "vit_cx:features=skip,cluster=mean": lambda p, c: vit_cx.replica(p, c, features="skip", cluster="mean")[0],
    "vit_cx:paper,features=block": lambda p, c: vit_cx.replica(p, c, mode="paper", features="block")[0],
    "vit_cx:noise=shared,linkage=average": lambda p, c: vit_cx.replica(p, c, noise="shared", linkage="average")[0],
    "vit_cx:linkage=single,delta=0.05": lambda p, c: vit_cx.replica(p, c, delta=0.05, linkage="single")[0],
}

OBJECT: dict[str, Any] = {"of": "vtranm", "contrast": 0.0, "shift": False}
FAST = OBJECT | {"of": "last", "score": "logit"}
LEADLIGHT: dict[str, Callable[[Pass, Classes], Tensor]] = {
    "leadlight": leadlight.replica,
    "leadlight:power=2,rounds=1,mix=1": lambda p, c: leadlight.replica(p, c, power=2.0, rounds=1, mix=1.0),
    "leadlight:source=transformer_mm": lambda p, c: leadlight.replica(p, c, of="transformer_mm"),
    "leadlight:single": lambda p, c: leadlight.replica(p, c, of="vtranm", contrast=1.0),
    "leadlight:object": lambda p, c: leadlight.replica(p, c, **OBJECT),
    "leadlight:fast": lambda p, c: leadlight.replica(p, c, **FAST),
    "leadlight:fast,contrast=1": lambda p, c: leadlight.replica(p, c, **FAST | {"contrast": 1.0}),
    "leadlight:attention": lambda p, c: leadlight.replica(p, c, power=None, rounds=1, **OBJECT),
}
