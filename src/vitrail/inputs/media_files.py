"""Read sound and video files: .wav and .gif without further libraries, everything else by PyAV."""

from __future__ import annotations

import wave
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from vitrail.errors import InputError, VitrailError

if TYPE_CHECKING:
    from PIL.Image import Image

#: Suffixes of sound files and of video files.
SOUNDS = (".wav", ".flac", ".mp3", ".ogg", ".opus", ".m4a", ".aac")
VIDEOS = (".mp4", ".mov", ".mkv", ".webm", ".avi", ".m4v", ".gif")
#: Seconds between two frames of a .gif file that does not state them.
_GIF_STEP = 0.1
#: Most frames and most samples that are read of one file.
MAX_FRAMES, MAX_SAMPLES = 20_000, 200_000_000


@dataclass(frozen=True)
class Sound:
    """A sound.

    Attributes:
        samples: Between −1 and 1, shape (channels, samples).
        rate: Samples a second.
    """

    samples: NDArray[np.float32]
    rate: int


@dataclass(frozen=True)
class Clip:
    """A video.

    Attributes:
        frames: RGB images.
        times: When each frame is shown, in seconds.
    """

    frames: tuple[Image, ...]
    times: tuple[float, ...]


def is_sound(path: str | Path) -> bool:
    """Whether a file is a sound, by its suffix."""
    return Path(path).suffix.lower() in SOUNDS


def is_video(path: str | Path) -> bool:
    """Whether a file is a video, by its suffix; a .gif may be an image as well."""
    return Path(path).suffix.lower() in VIDEOS


def read_sound(path: str | Path) -> Sound:
    """Read a sound file."""
    path = _existing(path)
    if path.suffix.lower() != ".wav":
        return _decoded_sound(path)
    try:
        with wave.open(str(path), "rb") as file:
            channels, width, rate, count = (
                file.getnchannels(),
                file.getsampwidth(),
                file.getframerate(),
                file.getnframes(),
            )
            _limit(path, count * channels, MAX_SAMPLES, "samples")
            data = file.readframes(count)
    except (wave.Error, EOFError) as error:
        reason = str(error) or "it ends too early"
        raise InputError(
            f"{path.name} is no .wav file of whole numbers ({reason}): convert it to 16-bit PCM, or install PyAV with "
            "pip install 'vitrail[media]' and pass it as .flac or .mp3"
        ) from error
    if width == 1:
        values = np.frombuffer(data, np.uint8).astype(np.float32) / 128 - 1
    elif width == 3:
        raw = np.frombuffer(data, np.uint8).reshape(-1, 3)
        wide = np.concatenate([np.zeros((len(raw), 1), np.uint8), raw], 1).reshape(-1).view("<i4")
        values = wide.astype(np.float32) / 2**31
    else:
        values = np.frombuffer(data, f"<i{width}").astype(np.float32) / 2 ** (8 * width - 1)
    if not values.size:
        raise InputError(f"{path.name} holds no samples")
    return Sound(np.ascontiguousarray(values.reshape(-1, channels).T), rate)


def read_video(path: str | Path) -> Clip:
    """Read a video file.

    Raises:
        InputError: The file is missing, damaged or of another format, or PyAV is not installed.
    """
    path = _existing(path)
    return _gif(path) if path.suffix.lower() == ".gif" else _decoded_video(path)


def _existing(path: str | Path) -> Path:
    path = Path(path)
    if not path.is_file():
        raise InputError(f"{path} does not exist or is no file")
    return path


def _limit(path: Path, count: int, most: int, what: str) -> None:
    if count > most:
        raise InputError(f"{path.name} has {count} {what}, the limit is {most}: cut it first")


def _gif(path: Path) -> Clip:
    from PIL import Image, ImageSequence, UnidentifiedImageError

    frames, times, now = [], [], 0.0
    try:
        with Image.open(path) as file:
            _limit(path, getattr(file, "n_frames", 1), MAX_FRAMES, "frames")
            for frame in ImageSequence.Iterator(file):
                frames.append(frame.convert("RGB"))
                times.append(now)
                now += float(frame.info.get("duration") or 1000 * _GIF_STEP) / 1000
    except (UnidentifiedImageError, OSError, SyntaxError) as error:
        raise InputError(f"{path.name} cannot be read as a .gif file ({error})") from error
    return Clip(tuple(frames), tuple(times))


def _av(path: Path) -> Any:
    try:
        import av
    except ImportError as error:
        what = "a 16-bit .wav" if is_sound(path) else "a .gif"
        raise InputError(
            f"reading {path.name} needs PyAV: pip install 'vitrail[media]', or convert it to {what} file"
        ) from error
    return av


def _decoded_video(path: Path) -> Clip:
    av = _av(path)
    frames, times = [], []
    try:
        with av.open(str(path)) as container:
            for frame in container.decode(video=0):
                frames.append(frame.to_image())
                times.append(float(frame.time or 0.0))
                _limit(path, len(frames), MAX_FRAMES, "frames")
    except VitrailError:
        raise
    except (av.FFmpegError, OSError, IndexError, ValueError) as error:
        raise InputError(f"{path.name} cannot be read as a video ({error})") from error
    if not frames:
        raise InputError(f"{path.name} holds no frames")
    return Clip(tuple(frames), tuple(times))


def _decoded_sound(path: Path) -> Sound:
    av = _av(path)
    pieces, rate = [], 0
    try:
        with av.open(str(path)) as container:
            if not container.streams.audio:
                raise InputError(f"{path.name} cannot be read as a sound: it has none")
            stream = container.streams.audio[0]
            rate = int(stream.rate)
            resampler = av.AudioResampler(format="fltp", layout=stream.layout, rate=rate)
            for frame in (*container.decode(audio=0), None):
                pieces += [one.to_ndarray() for one in resampler.resample(frame)]
                _limit(path, sum(piece.size for piece in pieces), MAX_SAMPLES, "samples")
    except VitrailError:
        raise
    except (av.FFmpegError, OSError, IndexError, ValueError) as error:
        raise InputError(f"{path.name} cannot be read as a sound ({error})") from error
    if not pieces:
        raise InputError(f"{path.name} holds no samples")
    return Sound(np.concatenate(pieces, 1).astype(np.float32), rate)
