"""How much one server, one client and one request may take."""

from __future__ import annotations

from dataclasses import dataclass

MEGABYTE = 1 << 20


@dataclass(frozen=True)
class Limits:
    """What is refused before it costs anything.

    Attributes:
        upload: Bytes of a picture's file.
        body: Bytes of any other request.
        pixels: Pixels of a picture, as its header states them.
        slender: How many times as long as wide a picture may be; resizing to the model's size enlarges the long side.
        characters: Of a text.
        methods: Methods of a request.
        targets: Classes of a request.
        looks: Pictures a method may show the model; masks, samples and steps count as such.
        altogether: How many times as many, and as much time, all methods of a request may take.
        seconds: Time a method may take.
        queue: Requests that wait or run.
        each: The same of one client.
        kept: Finished jobs that are kept for permalinks; the one nobody asked for longest goes first.
        kept_bytes: The same in bytes.
        pictures: Pictures that are kept.
        picture_bytes: The same in bytes.
        grace: Seconds a job goes on after its maker closed the last stream of it.
    """

    upload: int = 20 * MEGABYTE
    body: int = 256 * 1024
    pixels: int = 30_000_000
    slender: int = 20
    characters: int = 4000
    methods: int = 40
    targets: int = 8
    looks: int = 10_000
    altogether: int = 4
    seconds: float = 600.0
    queue: int = 128
    each: int = 8
    kept: int = 300
    kept_bytes: int = 512 * MEGABYTE
    pictures: int = 500
    picture_bytes: int = 256 * MEGABYTE
    grace: float = 5.0
