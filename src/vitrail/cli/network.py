"""Whether the Hugging Face hub can be reached: found out at once, instead of by retries of a minute."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread
from urllib.parse import urlsplit

from vitrail.errors import ModelError

#: Seconds to wait for a connection.
TIMEOUT = 3.0
#: Libraries whose weights come from the hub.
HUB_LIBRARIES = ("timm", "hf", "open_clip")
_PROXIES = ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")


def hub_responds(timeout: float = TIMEOUT) -> bool:
    """Whether a connection to the hub can be opened; True behind a proxy, where this cannot be known."""
    if any(os.environ.get(name) for name in _PROXIES):
        return True
    address = urlsplit(os.environ.get("HF_ENDPOINT") or "https://huggingface.co")
    port = address.port or (443 if address.scheme == "https" else 80)
    found: list[bool] = []

    def connect() -> None:
        try:
            socket.create_connection((address.hostname or "", port), timeout).close()
        except OSError:
            found.append(False)
        else:
            found.append(True)

    thread = Thread(target=connect, daemon=True)  # a name may take longer to resolve than the time limit
    thread.start()
    thread.join(timeout)
    return bool(found and found[0])


@contextmanager
def no_retries(model: str, weights: str) -> Iterator[None]:
    """Use the cache of the hub alone within a ``with`` block if the hub does not respond.

    Raises:
        ModelError: The model cannot be loaded without a network; the message says what can be done.
    """
    library, _, name = model.partition(":")
    is_local = library not in HUB_LIBRARIES or (library == "hf" and os.path.isdir(name))  # noqa: PTH112 - a name
    needs_hub = not is_local and (weights == "pretrained" or library == "hf")
    if not needs_hub or os.environ.get("HF_HUB_OFFLINE") or hub_responds():
        yield
        return
    from vitrail.models import offline

    try:
        with offline():
            yield
    except ModelError as error:
        if error.__cause__ is None:  # the name is wrong, which a network would not mend
            raise
        raise ModelError(
            f"{model} is not in the local cache, and the hub does not respond: connect to the network; or pass a file "
            "with --weights FILE; or --weights random, whose maps show what methods cost but explain nothing; or use "
            "an embedded model, as in --model scenes"
        ) from error
