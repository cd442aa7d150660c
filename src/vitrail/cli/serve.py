"""The command ``vitrail serve``."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from vitrail.errors import InputError, ModelError, require

#: Maximum number of connections; event streams stay open.
MAX_CONNECTIONS = 1000
LOOPBACK = ("127.0.0.1", "localhost", "::1")


def serve(
    model: Annotated[
        list[str],
        typer.Option(
            "--model",
            "-m",
            metavar="SOURCE:NAME",
            help="timm:NAME, hf:NAME, torchvision:NAME or an embedded model; repeat the option to serve several. "
            "Text classifiers: hf:NAME. See `vitrail models`.",
        ),
    ] = ["scenes"],  # noqa: B006 - typer reads the default, and nothing changes it
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
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="Port; 0 for any free port.")] = 8000,
    open_page: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
    device: Annotated[str, typer.Option("--device", help="Where to run: cpu, cuda, cuda:1, mps …")] = "cpu",
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
    from vitrail.web.limits import MEGABYTE, Limits

    require("fastapi", "web", "serve the page")
    uvicorn: Any = require("uvicorn", "web", "serve the page")
    require("python_multipart", "web", "receive images")
    limits = Limits(
        upload_bytes=int(upload * MEGABYTE), pixels=int(pixels * 1e6), evaluations=evaluations, seconds=seconds,
        queue=queue, jobs=kept,
    )  # fmt: skip
    models = load_models(model, weights or [], device)
    from vitrail.web.app import make_app

    app = make_app(models, limits, LOOPBACK if host in LOOPBACK else None)
    settings = uvicorn.Config(
        app,
        host=host,
        port=port,
        log_level="warning",
        server_header=False,
        timeout_graceful_shutdown=3,
        limit_concurrency=MAX_CONNECTIONS,
    )
    server = uvicorn.Server(settings)
    sock = settings.bind_socket()
    url_host = f"[{host}]" if ":" in host else host
    url = f"http://{url_host}:{sock.getsockname()[1]}/"
    common.out.print(f"Serving at [bold]{url}[/bold] (press Ctrl+C to stop)", soft_wrap=True)
    if host not in LOOPBACK:
        common.err.print("Anyone who can reach this machine can use the server: see docs/web.md, “For operators”.")
    if open_page:
        import webbrowser

        webbrowser.open(url)
    server.run(sockets=[sock])


def load_models(specs: list[str], weights: list[str], device: str = "cpu") -> list[Any]:
    """Load models and prepare them for serving.

    Args:
        specs: Models, as `vitrail.load` takes them.
        weights: For the first models: files, "pretrained" or "random".
        device: The device they run on.

    Raises:
        VitrailError: A model cannot be loaded, or the page does not support it.
    """
    from vitrail.cli import common
    from vitrail.web.model import ServedModel, serve_model

    if len(weights) > len(specs):
        raise InputError(
            f"{len(weights)} weights for {len(specs)} models: give at most one per model, in the same order"
        )
    models: list[ServedModel] = []
    for spec, source in zip(specs, [*weights, *["pretrained"] * len(specs)], strict=False):
        loaded = common.load_model(spec, source, device)
        tokenizer: Any = None
        if loaded.preprocess is None:
            if not spec.startswith("hf:"):
                raise ModelError(
                    f"the preprocessing of {spec} is unknown, so the page does not support it: use the Python API"
                )
            from vitrail.text.tokens import load_tokenizer

            tokenizer = load_tokenizer(spec)
        models.append(serve_model(loaded, spec, source, tokenizer, [model.id for model in models]))
    return models
