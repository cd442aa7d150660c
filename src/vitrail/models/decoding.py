"""Decode and preprocess images in processes of their own.

Threads that decode hold the lock of the interpreter for about a tenth of their time. The thread that runs a model on a
GPU needs that lock for every kernel it launches, and waits for it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import suppress
from dataclasses import asdict
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from typing import IO, Any
from weakref import finalize

import torch
from torch import Tensor

from vitrail.errors import InputError
from vitrail.models.preprocess import Preprocess, open_image

__all__ = ["ImageDecoder", "serve"]

#: Images that are decoded in the calling process before others start: a short run ends before they are ready.
IMAGES_BEFORE_START = 512
_PIPE_BYTES = 2**20
_COMMAND = "from vitrail.models.decoding import serve; serve()"


class ImageDecoder:
    """Decode and preprocess image files in processes; in the calling thread as long as none is ready.

    Args:
        processes: Number of processes.
        start_after: Images after which they start.

    Example:
        >>> from io import BytesIO
        >>> from PIL import Image
        >>> content = BytesIO()
        >>> Image.new("RGB", (64, 48), "white").save(content, "PNG")
        >>> ImageDecoder(1)("white.png", content.getvalue(), Preprocess((32, 32))).shape
        torch.Size([3, 32, 32])
    """

    def __init__(self, processes: int, start_after: int = IMAGES_BEFORE_START) -> None:
        self.processes, self.start_after = processes, start_after
        self._decoded, self._lock = 0, Lock()
        self._free: SimpleQueue[subprocess.Popen[bytes]] = SimpleQueue()
        self._started: list[subprocess.Popen[bytes]] = []
        self.close = finalize(self, _stop, self._started)

    def __call__(self, name: str, content: bytes, preprocess: Preprocess) -> Tensor:
        """Decode an image file; return the model's input, shape (channels, height, width).

        Args:
            name: Name of the file, for errors.
            content: Its content.
            preprocess: Preprocessing of the model.

        Raises:
            InputError: The file is damaged, or not an image.
        """
        self._count()
        try:
            process = self._free.get_nowait()
        except Empty:
            return preprocess(open_image(name, content))
        try:
            found = _request(process, name, content, preprocess)
        except (OSError, ValueError) as error:  # the pipe is closed, or its answer is cut off
            process.kill()
            self._start()
            raise InputError(
                f"{name} ended the process that decoded it (exit status {process.wait()}): the file may be damaged"
            ) from error
        self._free.put(process)
        if isinstance(found, InputError):
            raise found
        return found

    def _count(self) -> None:
        """Start the processes after some images."""
        with self._lock:
            self._decoded += 1
            begins = self._decoded == self.start_after + 1
        if begins:
            for _ in range(self.processes):
                self._start()

    def _start(self) -> None:
        Thread(target=_start_process, args=(self._started, self._free), daemon=True).start()


def _start_process(
    started: list[subprocess.Popen[bytes]], free: SimpleQueue[subprocess.Popen[bytes]]
) -> None:  # no method, so that a thread does not keep the decoder alive
    """Start a process and wait until it is ready."""
    path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)  # noqa: PTH109 - a string
    with suppress(OSError, ValueError):  # without processes, the calling threads decode
        process = subprocess.Popen(  # noqa: S603 - this interpreter
            [sys.executable, "-c", _COMMAND], stdin=subprocess.PIPE, stdout=subprocess.PIPE, pipesize=_PIPE_BYTES,
            env=os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
        )  # fmt: skip
        started.append(process)
        assert process.stdout is not None
        if process.stdout.readline():
            free.put(process)


def _stop(started: list[subprocess.Popen[bytes]]) -> None:
    for process in started:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            with suppress(OSError):
                pipe.close()  # type: ignore[union-attr]
    started.clear()


def _request(
    process: subprocess.Popen[bytes], name: str, content: bytes, preprocess: Preprocess
) -> Tensor | InputError:
    """Send an image to a process and read its answer."""
    assert process.stdin is not None and process.stdout is not None  # noqa: PT018
    header = {"name": name, "bytes": len(content), "preprocess": asdict(preprocess)}
    process.stdin.write(json.dumps(header).encode() + b"\n")
    process.stdin.write(content)
    process.stdin.flush()
    answer: dict[str, Any] = json.loads(process.stdout.readline())
    if "error" in answer:
        return InputError(answer["error"])
    pixels = torch.empty(answer["shape"])
    if process.stdout.readinto(pixels.numpy()) != pixels.nbytes:  # type: ignore[attr-defined]
        raise ValueError("the answer is cut off")
    return pixels


def serve() -> None:
    """Decode the images that arrive on standard input until it is closed; the whole work of a process."""
    import signal

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent, which closes the pipe
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what libraries print is no answer
    answers.write(b"ready\n")
    answers.flush()
    while line := sys.stdin.buffer.readline():
        _answer(json.loads(line), sys.stdin.buffer, answers)
        answers.flush()


def _answer(header: dict[str, Any], requests: IO[bytes], answers: IO[bytes]) -> None:
    content = requests.read(header["bytes"])
    try:
        pixels = Preprocess(**header["preprocess"])(open_image(header["name"], content)).numpy()
    except InputError as error:
        answers.write(json.dumps({"error": str(error)}).encode() + b"\n")
        return
    answers.write(json.dumps({"shape": pixels.shape}).encode() + b"\n")
    answers.write(pixels.data)
