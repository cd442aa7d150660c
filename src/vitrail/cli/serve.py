"""The command ``vitrail serve``."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from vitrail.errors import InputError, ModelError, require

#: Connections at a time; streams of jobs stay open.
CONNECTIONS = 1000
LOOPBACK = ("127.0.0.1", "localhost", "::1")


def serve(
    model: Annotated[
        list[str],
        typer.Option(
            "--model",
            "-m",
            metavar="SOURCE:NAME",
            help="timm:NAME, hf:NAME, torchvision:NAME or an embedded model; repeat it to offer several. "
            "Text classifiers as hf:NAME. See `vitrail models`.",
        ),
    ] = ["scenes"],  # noqa: B006 - typer reads the default, nobody changes it
    weights: Annotated[
        list[str] | None,
        typer.Option(
            "--weights",
            "-w",
            metavar="FILE|pretrained|random",
            help="Weights of the models, in their order; 'pretrained' for those not named.",
        ),
    ] = None,
    host: Annotated[
        str, typer.Option("--host", help="Address to listen on; anything but this machine's own is open to others.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="Port; 0 for any free one.")] = 8000,
    open_page: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
    device: Annotated[str, typer.Option("--device", help="Where to run: cpu, cuda, cuda:1, mps …")] = "cpu",
    upload: Annotated[float, typer.Option("--max-upload", metavar="MB", min=0.01, help="Largest file.")] = 20.0,
    pixels: Annotated[
        float, typer.Option("--max-pixels", metavar="MILLIONS", min=0.01, help="Largest picture.")
    ] = 30.0,
    looks: Annotated[
        int, typer.Option("--max-looks", min=1, help="Pictures a method may show the model: masks, samples, steps.")
    ] = 10_000,
    seconds: Annotated[float, typer.Option("--max-seconds", min=1, help="Time a method may take.")] = 600.0,
    queue: Annotated[int, typer.Option("--queue", min=1, help="Requests that may wait.")] = 128,
    kept: Annotated[int, typer.Option("--kept", min=1, help="Finished results kept for permalinks.")] = 300,
) -> None:
    """Open a page where a picture or a text is explained by several methods side by side.

    For example: `vitrail serve --open`, or `vitrail serve -m timm:vit_base_patch16_224 -m scenes`
    """
    from vitrail.cli import common
    from vitrail.web.limits import MEGABYTE, Limits

    require("fastapi", "web", "serve the page")
    uvicorn: Any = require("uvicorn", "web", "serve the page")
    require("python_multipart", "web", "take pictures")
    limits = Limits(
        upload=int(upload * MEGABYTE), pixels=int(pixels * 1e6), looks=looks, seconds=seconds, queue=queue, kept=kept
    )
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
        limit_concurrency=CONNECTIONS,
    )
    server = uvicorn.Server(settings)
    sock = settings.bind_socket()
    shown = f"[{host}]" if ":" in host else host
    url = f"http://{shown}:{sock.getsockname()[1]}/"
    common.out.print(f"The page is at [bold]{url}[/bold]; Ctrl+C ends it.", soft_wrap=True)
    if host not in LOOPBACK:
        common.err.print("It is open to everyone who can reach this machine: see docs/web.md, “For operators”.")
    if open_page:
        import webbrowser

        webbrowser.open(url)
    server.run(sockets=[sock])


def load_models(specs: list[str], weights: list[str], device: str = "cpu") -> list[Any]:
    """The models an operator named, each looked into.

    Args:
        specs: As `vitrail.load` takes them.
        weights: For the first of them: files, "pretrained" or "random".
        device: Where they run.

    Raises:
        VitrailError: One of them cannot be had, or the page cannot show it.
    """
    from vitrail.cli import common
    from vitrail.web.model import ServedModel, serve_model

    if len(weights) > len(specs):
        raise InputError(f"{len(weights)} weights for {len(specs)} models: give one for each model at most, in order")
    found: list[ServedModel] = []
    for spec, source in zip(specs, [*weights, *["pretrained"] * len(specs)], strict=False):
        about = common.load_model(spec, source, device)
        tokenizer: Any = None
        if about.preprocess is None:
            if not spec.startswith("hf:"):
                raise ModelError(f"how {spec} wants its input is unknown: the page cannot show it")
            from vitrail.cli.text import tokenizer_of

            tokenizer = tokenizer_of(spec)
        found.append(serve_model(about, spec, source, tokenizer, [one.id for one in found]))
    return found
