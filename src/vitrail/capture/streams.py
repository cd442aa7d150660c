"""Streams of tokens and the attention layers between them: encoder and decoder, or an encoder for each input."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class StreamLayer:
    """An attention layer between streams.

    Attributes:
        call: Which of the model's attention calls it is.
        queries: Stream of its queries, to which its result is added.
        keys: Stream of its keys and values.
        step: Layers of one step do not depend on each other.
        queries_at: Which tokens of their stream the queries are; None for all, in order.
        keys_at: The same of the keys.
    """

    call: int
    queries: int
    keys: int
    step: int
    queries_at: tuple[int, ...] | None = None
    keys_at: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Streams:
    """The streams of tokens of a model.

    Attributes:
        layers: Attention layers that the score depends on, in order.
        sizes: Number of tokens of each stream.
        explained: The stream of the input that is explained.
        read: Indices of layers: of each stream that the score reads, the last whose result it reads directly.
    """

    layers: tuple[StreamLayer, ...]
    sizes: tuple[int, ...]
    explained: int
    read: tuple[int, ...]

    @property
    def crossed(self) -> bool:
        """Whether some attention joins two streams."""
        return any(layer.queries != layer.keys for layer in self.layers)

    @property
    def first(self) -> int:
        """The first layer inside the stream that is explained, or else the first that reads it."""
        inside = [i for i, o in enumerate(self.layers) if o.queries == o.keys == self.explained]
        return inside[0] if inside else next(i for i, o in enumerate(self.layers) if o.keys == self.explained)

    def steps(self) -> list[list[int]]:
        """Indices of the layers, step by step."""
        found: dict[int, list[int]] = {}
        for i, layer in enumerate(self.layers):
            found.setdefault(layer.step, []).append(i)
        return list(found.values())
