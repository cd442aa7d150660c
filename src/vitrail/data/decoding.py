"""Read, decode and preprocess images in processes of their own.

Threads that decode hold the lock of the interpreter for a tenth of their time. The thread that runs a model on a GPU
needs that lock for every kernel it launches, and waits for it.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import Event, Lock, Thread, Timer
from typing import Any, NamedTuple
from weakref import finalize

import torch
from torch import Tensor

from vitrail.data.source import FileSource, Source, SourceItem
from vitrail.errors import InputError, VitrailError
from vitrail.models.preprocess import Preprocess, open_image

__all__ = ["ImageDecoder", "serve"]

#: Images that are decoded in the calling process before others start: a short run ends before they are ready.
IMAGES_BEFORE_START = 512
#: Seconds until a thread that waits for a process decodes its images itself.
MAX_WAIT = 60.0
#: Seconds that decoding an image may take in a process.
MAX_SECONDS = 60.0
_PIPE_BYTES = 2**20
_COMMAND = "from vitrail.data.decoding import serve; serve()"
_Process = subprocess.Popen[bytes]


class _Request(NamedTuple):
    """Images to be decoded: names for errors, and each as content or as what the source reads."""

    source: Source
    names: list[str]
    items: list[bytes | SourceItem]
    preprocess: Preprocess

    def decode(self) -> list[Tensor | VitrailError]:
        """Read and decode all of them; one that cannot be read gives the error."""
        found: list[Tensor | VitrailError] = []
        for name, item in zip(self.names, self.items, strict=True):
            try:
                content = item if isinstance(item, bytes) else self.source.open(item)
                found.append(self.preprocess(open_image(name, content)))
            except VitrailError as error:
                found.append(error)
            except Exception as error:  # noqa: BLE001 - such as too little memory: the other images are decoded
                found.append(InputError(f"{name} cannot be decoded ({type(error).__name__}: {error})"))
        return found


class ImageDecoder:
    """Read and decode some images of a source in a process; in the calling thread as long as none is ready.

    Local files are read in the process. What comes from a table or a store is read here, where its rows are cached and
    its connection is open.

    Args:
        processes: Number of processes.
        start_after: Images after which they start.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from PIL import Image
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = Path(folder) / "white.png"
        ...     Image.new("RGB", (64, 48), "white").save(file)
        ...     item = SourceItem("white.png", str(file))
        ...     [one.shape for one in ImageDecoder(1)(FileSource(), [item], Preprocess((32, 32)))]
        [torch.Size([3, 32, 32])]
    """

    def __init__(self, processes: int, start_after: int = IMAGES_BEFORE_START) -> None:
        self.processes, self.start_after = processes, start_after
        self._decoded, self._lock, self._ready = 0, Lock(), Event()
        self._free: SimpleQueue[_Process] = SimpleQueue()
        self._started: list[_Process] = []
        self.close = finalize(self, _stop, self._started)

    def __call__(
        self, source: Source, items: Sequence[SourceItem], preprocess: Preprocess
    ) -> list[Tensor | VitrailError]:
        """Decode images; return the model's inputs, shape (channels, height, width) each, or errors.

        Args:
            source: The source of the images.
            items: The images.
            preprocess: Preprocessing of the model.
        """
        with self._lock:
            before, self._decoded = self._decoded, self._decoded + len(items)
        if before <= self.start_after < self._decoded:
            for _ in range(self.processes):
                self._start()
        return self._decode(source, items, preprocess)

    def _decode(
        self, source: Source, items: Sequence[SourceItem], preprocess: Preprocess, deaths: int = 0
    ) -> list[Tensor | VitrailError]:
        """Decode images in a process; those of one that dies again one by one, since only one of them is at fault.

        An image in whose company a process died (``deaths`` of them) is never decoded here, where it would end the run.
        """
        names = [item.id if item.place else item.file for item in items]
        waits = deaths > 0 or (self._ready.is_set() and any(process.poll() is None for process in list(self._started)))
        try:
            process = self._free.get(timeout=MAX_WAIT) if waits else self._free.get_nowait()
        except Empty:
            if deaths:
                reason = f"the process that decoded {names[0]} ended, and no other started within {MAX_WAIT:.0f} s"
                return [InputError(f"{reason}: run it again")]
            return _Request(source, names, list(items), preprocess).decode()
        request, errors = _to_send(source, names, items, preprocess)
        try:
            read = iter(_ask(process, request))
        except (OSError, EOFError, ValueError, pickle.UnpicklingError) as error:
            process.kill()
            self._start()
            if len(items) > 1:
                return [one for item in items for one in self._decode(source, [item], preprocess, 1)]
            if isinstance(error, TimeoutError):
                return [InputError(f"{names[0]} was not decoded within {MAX_SECONDS:.0f} s: the file may be damaged")]
            if deaths < 2:  # it may have been killed for another reason
                return self._decode(source, items, preprocess, deaths + 1)
            reason = f"{names[0]} ended the process that decoded it (exit status {process.wait()})"
            return [InputError(f"{reason}: the file may be damaged")]
        self._free.put(process)
        return [errors[i] if i in errors else next(read) for i in range(len(items))]

    def wait(self) -> None:
        """Wait until all processes are ready and idle, if they were started; for measurements."""
        if self._decoded > self.start_after:
            for process in [self._free.get(timeout=10 * MAX_WAIT) for _ in range(self.processes)]:
                self._free.put(process)

    def _start(self) -> None:
        Thread(target=_start_process, args=(self._started, self._free, self._ready), daemon=True).start()


def _to_send(
    source: Source, names: list[str], items: Sequence[SourceItem], preprocess: Preprocess
) -> tuple[_Request, dict[int, VitrailError]]:
    """What a process is to decode, and errors of images that cannot be read here, by position."""
    if isinstance(source, FileSource) and not any("://" in item.file for item in items):
        return _Request(source, names, list(items), preprocess), {}
    request, errors = _Request(FileSource(), [], [], preprocess), dict[int, VitrailError]()
    for position, item in enumerate(items):
        try:
            request.items.append(source.open(item))
            request.names.append(names[position])
        except VitrailError as error:
            errors[position] = error
    return request, errors


def _start_process(
    started: list[_Process], free: SimpleQueue[_Process], ready: Event
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
            ready.set()


def _stop(started: list[_Process]) -> None:
    for process in started:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            with suppress(OSError):
                pipe.close()  # type: ignore[union-attr]
    started.clear()


def _ask(process: _Process, request: _Request) -> list[Tensor | VitrailError]:
    """Send images to a process and read its answer: shape or error of each, then the pixels of all.

    Raises:
        TimeoutError: It took too long, and was killed.
    """
    requests: Any = process.stdin
    answers: Any = process.stdout
    seconds, expired = MAX_SECONDS * max(1, len(request.items)), Event()

    def expire() -> None:
        expired.set()
        process.kill()

    limit = Timer(seconds, expire)
    limit.daemon = True
    limit.start()
    try:
        pickle.dump(request, requests)
        requests.flush()
        shape, errors = pickle.load(answers)  # noqa: S301 - from a process of this module
        pixels = torch.empty(shape)
        if answers.readinto(pixels.numpy()) != pixels.nbytes:
            raise EOFError
    except (OSError, EOFError, ValueError, pickle.UnpicklingError) as error:
        if expired.is_set():
            raise TimeoutError(f"no answer within {seconds:.0f} s") from error
        raise
    finally:
        limit.cancel()
    read = iter(pixels)
    return [next(read) if error is None else error for error in errors]


def serve() -> None:
    """Decode the images that arrive on standard input until it is closed; the whole work of a process."""
    import signal

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent, which closes the pipe
    torch.set_num_threads(1)
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what libraries print is no answer
    answers.write(b"ready\n")
    answers.flush()
    with suppress(EOFError):
        while True:
            request: _Request = pickle.load(sys.stdin.buffer)  # noqa: S301 - from the parent
            found = request.decode()
            read = [one for one in found if isinstance(one, Tensor)]
            pixels = torch.stack(read) if read else torch.empty(0)
            errors = [one if isinstance(one, VitrailError) else None for one in found]
            pickle.dump((tuple(pixels.shape), errors), answers)
            answers.write(pixels.numpy().data)
            answers.flush()
