"""Limits on what one server, one client and one request may use."""

from __future__ import annotations

from dataclasses import dataclass

MEGABYTE = 1 << 20

#: Largest values of options that decide how long a method takes or how much memory it needs.
MAX_OPTION_VALUES = {
    "masks": 10_000, "random_masks": 10_000, "samples": 1000, "steps": 500, "draws": 20, "cells": 32,
    "seed": 2**31 - 1,
}  # fmt: skip
#: Largest magnitude of any other numeric option.
MAX_OPTION_NUMBER = 1_000_000
#: Longest text option.
MAX_OPTION_CHARACTERS = 100
#: Longest method with its options, as in ``rise:masks=500``.
MAX_SPEC_CHARACTERS = 200
#: A method that evaluates at most this many images may run between two batches of a longer one.
MAX_INTERLEAVED_EVALUATIONS = 8
#: Requests of several clients that are computed in one batch, at most, and about how long such a batch may take.
MAX_BATCH = 16
BATCH_SECONDS = 0.4
#: A smaller model uses one thread: on the scenes model (1.3 million) two were no faster, for an image or a batch
#: of RISE. The bound itself is a guess.
MIN_PARALLEL_PARAMETERS = 10_000_000


@dataclass(frozen=True)
class Limits:
    """Limits that are checked before any work is done.

    Attributes:
        upload_bytes: Size of an image file.
        body_bytes: Size of any other request.
        pixels: Pixels of an image, as stated in its header.
        aspect_ratio: Longer side of an image divided by the shorter one. Resizing to the model's input size enlarges
            the longer side.
        characters: Characters of a text.
        methods: Methods of a request.
        targets: Classes of a request.
        evaluations: Perturbed images one method may evaluate: masks, samples and steps.
        request_factor: All methods of a request together may use this many times ``evaluations`` and ``seconds``.
        seconds: Time one method may take.
        queue: Queued and running tasks of all clients.
        queue_per_client: Queued and running tasks of one client.
        jobs: Finished jobs kept for permalinks. The least recently used is dropped first.
        job_bytes: Memory of these jobs.
        images: Images kept.
        image_bytes: Memory of these images.
        files: Uploads and figures of all clients that are being read or drawn.
        files_per_client: Those of one client.
        head_seconds: Time in which the head of a request must arrive.
        body_seconds: Time in which a request must arrive.
        upload_seconds: Time in which an image file must arrive.
        connections: Open connections.
        waiting_connections: Connections whose request is not complete; the oldest is closed first.
        workers: Threads that run models; 0 for as many as torch uses, at most four.
        grace: Seconds a job continues while nobody follows it: by an event stream, by waiting for it, or by asking for
            it again and again.
    """

    upload_bytes: int = 20 * MEGABYTE
    body_bytes: int = 256 * 1024
    pixels: int = 30_000_000
    aspect_ratio: int = 20
    characters: int = 4000
    methods: int = 48
    targets: int = 8
    evaluations: int = 10_000
    request_factor: int = 4
    seconds: float = 600.0
    queue: int = 128
    queue_per_client: int = 8
    jobs: int = 300
    job_bytes: int = 512 * MEGABYTE
    images: int = 500
    image_bytes: int = 256 * MEGABYTE
    files: int = 128
    files_per_client: int = 8
    head_seconds: float = 10.0
    body_seconds: float = 10.0
    upload_seconds: float = 120.0
    connections: int = 1000
    waiting_connections: int = 200
    workers: int = 0
    grace: float = 10.0
