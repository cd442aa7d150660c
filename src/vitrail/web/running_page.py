"""Serve models from Python, such as a notebook, in a thread."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from html import escape
from time import monotonic, sleep
from typing import Any, Self

from torch import nn

from vitrail.errors import InputError, ModelError, require
from vitrail.models import LoadedModel
from vitrail.models.loaded import describe
from vitrail.models.preprocess import Preprocess

#: Seconds to wait for the server to start, and to stop.
START_SECONDS, STOP_SECONDS = 30.0, 5.0


@dataclass(frozen=True, eq=False)
class RunningPage:
    """A page that is served in a thread until `close`, or until the program ends.

    Attributes:
        url: Its address.
    """

    url: str
    _server: Any
    _thread: threading.Thread

    def close(self) -> None:
        """Stop the server; running jobs are cancelled."""
        self._server.should_exit = True
        self._thread.join(STOP_SECONDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"RunningPage({self.url})"

    def _repr_html_(self) -> str:
        url = escape(self.url)
        link = f"<a href='{url}' target='_blank' rel='noopener'>{url}</a>"
        return f"<p>Vitrail: {link}. Stop it with <code>close()</code>.</p>"


def serve_models(
    models: Sequence[nn.Module | LoadedModel | str],
    *,
    preprocess: Preprocess | None = None,
    classes: Sequence[str] | None = None,
    tokenizer: Any = None,
    processor: Any = None,
    port: int = 0,
    open_page: bool = False,
) -> RunningPage:
    """Serve models in a thread; see `vitrail.serve`."""
    for package in ("fastapi", "uvicorn", "python_multipart"):
        require(package, "web", "serve the page")
    from vitrail.models import load
    from vitrail.web.fastapi_app import make_app
    from vitrail.web.page_server import PageServer, bind
    from vitrail.web.served_model import ServedModel, serve_model

    if not models:
        raise InputError("no model was given: pass a model, as in vitrail.serve(model)")
    if len(models) > 1 and any(one is not None for one in (preprocess, classes, tokenizer, processor)):
        raise InputError(
            f"preprocess, classes, tokenizer and processor describe one model, and {len(models)} were given: pass each "
            "as vitrail.LoadedModel(module, preprocess, classes)"
        )
    served: list[ServedModel] = []
    for given in models:
        loaded = load(given) if isinstance(given, str) else describe(given)
        if preprocess is not None:
            loaded = replace(loaded, preprocess=preprocess)
        if classes is not None:
            loaded = replace(loaded, classes=tuple(classes))
        if tokenizer is None and not isinstance(loaded.preprocess, Preprocess):
            raise ModelError(
                f"the preprocessing of {loaded.name} is unknown: pass preprocess=vitrail.Preprocess(size, mean, std), "
                "or tokenizer=… for a text model"
            )
        used = [one.id for one in served]
        served.append(serve_model(loaded, loaded.name, tokenizer=tokenizer, used_ids=used, processor=processor))
    sock = bind("127.0.0.1", port)
    server = PageServer(make_app(served, hosts=[]), "127.0.0.1", port)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]}, name="vitrail-page", daemon=True)
    thread.start()
    end = monotonic() + START_SECONDS
    while not server.started:
        if not thread.is_alive() or monotonic() > end:
            raise InputError("the server did not start: see its log, or choose another port with port=…")
        sleep(0.01)
    page = RunningPage(f"http://127.0.0.1:{sock.getsockname()[1]}/", server, thread)
    if open_page:
        import webbrowser

        webbrowser.open(page.url)
    return page
