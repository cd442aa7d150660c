"""What runs of chunks of texts and of pairs share: the plan, the examples, the protocols and the rows."""

from __future__ import annotations

from vitrail.bench.context import BenchContext
from vitrail.bench.parts import ScoreRows
from vitrail.bench.protocols import PROTOCOLS


class ChunkRunner:
    """Runs one chunk of examples."""

    def __init__(self, context: BenchContext, model: int, dataset: int, methods: tuple[str, ...], key: str) -> None:
        self.context, self.plan, self.methods, self.key = context, context.plan, methods, key
        self.examples = context.images(dataset)
        self.protocols = [PROTOCOLS[name] for name in self.plan.protocols_of(self.examples.spec)]
        self.rows = ScoreRows(self.plan.models[model].title, self.examples.spec.title, methods)
