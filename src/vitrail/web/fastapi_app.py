"""The FastAPI application: routes, the page, error responses and security middleware."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import ExitStack, asynccontextmanager
from functools import partial
from importlib.metadata import version
from importlib.resources import files
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, Response
from starlette.exceptions import HTTPException
from starlette.middleware.gzip import GZipMiddleware
from starlette.staticfiles import StaticFiles
from starlette.templating import Jinja2Templates

from vitrail import fast
from vitrail.viz.colormap import colour_tables
from vitrail.web.access import AccessToken
from vitrail.web.api_errors import ApiError, error_body, message_of
from vitrail.web.events import cancel_abandoned_jobs
from vitrail.web.health import health_router
from vitrail.web.help_page import help_page, method_page, not_found_page
from vitrail.web.limits import Limits
from vitrail.web.map_pages import Gallery, maps_router
from vitrail.web.middleware import SecurityMiddleware
from vitrail.web.model_kind import shown_pixels
from vitrail.web.queue import log
from vitrail.web.reference import api_reference
from vitrail.web.routes import client_of, router, server_of
from vitrail.web.samples import sample_pixels, samples_for
from vitrail.web.script_bundle import bundle_modules, content_name
from vitrail.web.served_model import ServedModel
from vitrail.web.server_state import ServerState

PAGE = "page.html"
#: Width of the canvas before the first image is drawn: more than any column.
PLACEHOLDER_WIDTH = 1200
DESCRIPTION = (
    "Relevance maps of published methods for a model's decision on an image or a text. Upload an image, get the "
    "prediction, then explain it. Errors have the form {error: {what, fix}}."
)


def make_app(
    models: Sequence[ServedModel],
    limits: Limits | None = None,
    hosts: Sequence[str] | None = None,
    access: AccessToken | None = None,
    gallery: Gallery | None = None,
) -> FastAPI:
    """Create the application; ``gallery`` is a store of maps to browse at ``/maps``."""
    limits = limits or Limits()
    app = FastAPI(
        title="Vitrail", version=version("vitrail"), description=DESCRIPTION, openapi_url="/api/openapi.json",
        docs_url=None, redoc_url=None, lifespan=_lifespan,
    )  # fmt: skip
    app.state.server = ServerState(models, limits)
    app.include_router(router)
    app.include_router(health_router)
    if gallery is not None:
        app.include_router(maps_router(gallery))
    package = files("vitrail.web")
    app.state.templates = Jinja2Templates(str(package.joinpath("templates")))
    static = package.joinpath("static")
    script = bundle_modules(static, "page.js")
    script_path = f"/static/{content_name('page.js', script)}"
    app.state.templates.env.globals |= {
        "colour_tables": colour_tables(), "first_size": _first_size(models), "script_path": script_path,
        "gallery": gallery,
    }  # fmt: skip
    app.add_api_route(script_path, partial(_script, script), include_in_schema=False)
    app.mount("/static", StaticFiles(directory=str(static)), "static")
    pages: dict[str, Callable[..., Any]] = {
        "/": _page, "/r/{job}": _permalink, "/help": _help, "/help/methods/{name}": _method_help,
        "/api/docs": _reference,
    }  # fmt: skip
    for path, respond in pages.items():
        app.add_api_route(path, respond, methods=["GET", "HEAD"], include_in_schema=False, response_class=HTMLResponse)
    app.add_exception_handler(RequestValidationError, _validation_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(Exception, _internal_error)
    app.add_middleware(GZipMiddleware, minimum_size=1024)  # leaves event streams and images alone
    app.add_middleware(SecurityMiddleware, limits=limits, hosts=hosts, access=access)
    return app


def _first_size(models: Sequence[ServedModel]) -> tuple[int, int]:
    """Width and height of the image that the page opens first: its place is kept free while it loads."""
    width, height = PLACEHOLDER_WIDTH, PLACEHOLDER_WIDTH
    for served in models:
        if served.kind == "image" and (samples := samples_for(served)):
            pixels = sample_pixels(samples[0].id, served)
            if pixels is not None:
                shown = shown_pixels(pixels)
                height = round(width * shown.shape[0] / shown.shape[1])
            break
    return width, height


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    server: ServerState = app.state.server
    server.open()
    abandoned = asyncio.create_task(cancel_abandoned_jobs(server))
    with ExitStack() as promises:
        for served in server.models.values():  # the server alone uses its models
            promises.enter_context(fast.unchanged(served.loaded.module))
        yield
    abandoned.cancel()
    server.close()


# -- the page ----------------------------------------------------------------------------------------------------------


def _render(request: Request, job: str, status: int = 200) -> Response:
    client_of(request)  # sets the cookie
    templates: Jinja2Templates = request.app.state.templates
    page = templates.TemplateResponse(request, PAGE, {"job": job, "version": version("vitrail")}, status)
    page.headers["Cache-Control"] = "no-store"
    return page


async def _script(text: str) -> Response:
    headers = {"Cache-Control": "public, max-age=31536000, immutable"}  # its name changes with its content
    return Response(text, media_type="text/javascript", headers=headers)


async def _page(request: Request) -> Response:
    return _render(request, "")


async def _permalink(request: Request, job: str) -> Response:
    try:
        server_of(request).job(job)
    except ApiError:
        return _render(request, job[:60], 404)
    return _render(request, job)


async def _help(_: Request) -> Response:
    return HTMLResponse(help_page(version("vitrail")))


async def _method_help(_: Request, name: str) -> Response:
    page = method_page(name)
    if page is None:
        raise HTTPException(404, f"no method {name[:60]!r}")
    return HTMLResponse(page)


async def _reference(request: Request) -> Response:
    return HTMLResponse(api_reference(request.app.openapi()))


# -- errors ------------------------------------------------------------------------------------------------------------


async def _http_error(request: Request, problem: Exception) -> Response:
    assert isinstance(problem, HTTPException)
    message = message_of(problem.detail)
    if problem.status_code == 404 and not request.url.path.startswith(("/api/", "/static/")):
        return HTMLResponse(not_found_page(request.url.path), 404)
    return JSONResponse(error_body(message["what"], message["fix"]), problem.status_code, problem.headers)


async def _validation_error(_: Request, problem: Exception) -> Response:
    assert isinstance(problem, RequestValidationError)
    first: Any = next(iter(problem.errors()), {})
    field = ".".join(str(part) for part in first.get("loc", ()) if part != "body") or "the request"
    what = f"{field[:80]}: {str(first.get('msg', 'is not valid')).lower()}"
    return JSONResponse(error_body(what, "See /api/docs."), 422)


async def _internal_error(_: Request, problem: Exception) -> Response:
    log.error("a request failed", exc_info=problem)
    return JSONResponse(error_body("internal server error", "Try again; the server's log has the details."), 500)
