"""The command ``vitrail serve``."""

from __future__ import annotations

import os
import secrets
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

import typer

from vitrail.cli.common import ScoresOption
from vitrail.errors import InputError, ModelError, require

if TYPE_CHECKING:
    from vitrail.bench.map_gallery import MapGallery

#: Where the server itself says what to know before it is opened to other machines.
OPERATORS_PATH = "api/docs#for-operators"


#: Embedded models of every kind: classes, prompts, boxes, regions, videos, sound, questions and texts.
DEFAULT_MODELS = [
    "scenes", "scenes-clip", "scenes-detr", "scenes-seg", "scenes-video", "tones", "scenes-vlm", "lm-recall",
]  # fmt: skip


def serve(
    model: Annotated[
        list[str],
        typer.Option(
            "--model",
            "-m",
            metavar="SOURCE:NAME",
            help="timm:NAME, hf:NAME, torchvision:NAME or an embedded model; repeat the option to serve several. "
            "Texts: classifiers and language models, hf:NAME. See `vitrail models`.",
        ),
    ] = DEFAULT_MODELS,
    weights: Annotated[
        list[str] | None,
        typer.Option(
            "--weights",
            "-w",
            metavar="FILE|pretrained|random",
            help="Weights of the models, in the same order; 'pretrained' for the remaining models.",
        ),
    ] = None,
    host: Annotated[
        str, typer.Option("--host", help="Address to listen on. By default only this machine can connect.")
    ] = "127.0.0.1",
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            "--allow-host",
            metavar="NAME",
            help="Host name under which the page is opened; repeat for several. Addresses and localhost always work.",
        ),
    ] = None,
    token: Annotated[
        str,
        typer.Option(
            "--token",
            metavar="TOKEN",
            envvar="VITRAIL_TOKEN",
            show_envvar=True,
            show_default=False,
            help="Answer only requests with this token, at least 16 characters; 'auto' for a random one.",
        ),
    ] = "",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="Port; 0 for any free port.")] = 8000,
    open_page: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
    device: Annotated[str, typer.Option("--device", help="Where to run: cpu, cuda, cuda:1, mps …")] = "cpu",
    scores: ScoresOption = None,
    maps: Annotated[
        Path | None,
        typer.Option(
            "--maps",
            metavar="FOLDER",
            help="Also browse the maps that `vitrail explain DIR` or a run has kept, at /maps.",
        ),
    ] = None,
    upload: Annotated[
        float, typer.Option("--max-upload", metavar="MB", min=0.01, help="Maximum size of an image file.")
    ] = 20.0,
    pixels: Annotated[
        float, typer.Option("--max-pixels", metavar="MILLIONS", min=0.01, help="Maximum pixels of an image.")
    ] = 30.0,
    evaluations: Annotated[
        int,
        typer.Option("--max-evaluations", min=1, help="Perturbed images a method may evaluate: masks, samples, steps."),
    ] = 10_000,
    seconds: Annotated[float, typer.Option("--max-seconds", min=1, help="Time one method may take.")] = 600.0,
    queue: Annotated[int, typer.Option("--queue", min=1, help="Maximum number of queued jobs.")] = 128,
    kept: Annotated[int, typer.Option("--kept", min=1, help="Finished results kept for permalinks.")] = 300,
) -> None:
    """Serve a web page that compares methods.

    Examples: `vitrail serve --open`, or `vitrail serve -m timm:vit_base_patch16_224 -m scenes`
    """
    from vitrail.cli import common
    from vitrail.web.hosts import is_loopback
    from vitrail.web.limits import MEGABYTE, Limits

    require("fastapi", "web", "serve the page")
    require("uvicorn", "web", "serve the page")
    require("python_multipart", "web", "receive images")
    limits = Limits(
        upload_bytes=int(upload * MEGABYTE), pixels=int(pixels * 1e6), evaluations=evaluations, seconds=seconds,
        queue=queue, jobs=kept,
    )  # fmt: skip
    from vitrail.web.access import AccessToken
    from vitrail.web.fastapi_app import make_app
    from vitrail.web.map_pages import MAPS_PATH
    from vitrail.web.page_server import PageServer, bind

    token = secrets.token_urlsafe(24) if token == "auto" else token  # noqa: S105 - a keyword, not a token
    access = AccessToken(token) if token else None
    sock = bind(host, port)
    gallery = None if maps is None else _open_gallery(maps)
    app = make_app(load_models(model, weights or [], device, scores), limits, allow_host or [], access, gallery)
    port = sock.getsockname()[1]
    name = allow_host[0] if allow_host else f"[{host}]" if ":" in host else host
    path = "" if gallery is None else MAPS_PATH.removeprefix("/")
    url = f"http://{name}:{port}/{path}" + (f"?token={quote(token)}" if token else "")
    common.out.print(f"Serving at [bold]{url}[/bold] (press Ctrl+C to stop)", soft_wrap=True)
    if not is_loopback(host):
        text = _warning(url.partition("?")[0], allow_host or [], bool(token))
        common.err.print(text, soft_wrap=True, highlight=False)
    if open_page:
        import webbrowser

        webbrowser.open(url)
    # Threads that answer requests hand over to the thread that runs the models ten times sooner than by default.
    sys.setswitchinterval(0.0005)
    try:
        PageServer(app, host, port).run(sockets=[sock])
    except KeyboardInterrupt:
        common.err.print("stopped")
        sys.stdout.flush()
        # A thread may be in the middle of a forward pass, which cannot be interrupted, and nothing is left to write.
        os._exit(130)


def _open_gallery(folder: Path) -> MapGallery:
    from vitrail.bench.map_gallery import MapGallery
    from vitrail.cli.bench import require_bench

    require_bench()
    return MapGallery(folder)


def _warning(url: str, names: list[str], has_token: bool) -> str:
    """What the operator of a server that other machines can reach should know.

    Example:
        >>> _warning("http://10.0.0.7:8000/", ["demo.example.org"], has_token=True)[:60]
        'Other machines can reach this server by its address or as de'
    """
    by = f" or as {', '.join(names)}" if names else "; add --allow-host NAME to open it by a name"
    who = "Clients with the token" if has_token else "Without --token, anyone"
    return f"Other machines can reach this server by its address{by}. {who} can use it. See {url}{OPERATORS_PATH}"


def load_models(specs: list[str], weights: list[str], device: str = "cpu", scores: str | None = None) -> list[Any]:
    """Load models and prepare them for serving.

    Args:
        specs: Models, as `vitrail.load` takes them.
        weights: For the first models: files, "pretrained" or "random".
        device: The device they run on.
        scores: What turns their class scores into probabilities; by default what each model states.

    Raises:
        VitrailError: A model cannot be loaded, or the page does not support it.
    """
    from vitrail.cli import common
    from vitrail.data import QuestionProcessor
    from vitrail.web.model_kind import media_of
    from vitrail.web.served_model import ServedModel, serve_model

    if len(weights) > len(specs):
        raise InputError(
            f"{len(weights)} weights for {len(specs)} models: give at most one per model, in the same order"
        )
    models: list[ServedModel] = []
    for spec, source in zip(specs, [*weights, *["pretrained"] * len(specs)], strict=False):
        loaded = common.load_model(spec, source, device, scores)
        tokenizer: Any = None
        if loaded.preprocess is None and media_of(loaded) != "sound":
            if not spec.startswith("hf:") and spec != "lm-recall":
                raise ModelError(
                    f"the preprocessing of {spec} is unknown, so the page does not support it: use the Python API"
                )
            from vitrail.text.tokens import load_tokenizer

            tokenizer = load_tokenizer(spec)
        processor = QuestionProcessor() if spec == "scenes-vlm" else None
        models.append(serve_model(loaded, spec, source, tokenizer, [model.id for model in models], processor))
    return models
