"""The application: routes, the page, errors in one form, and the guard around all of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from importlib.resources import files
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, Response
from starlette.exceptions import HTTPException
from starlette.staticfiles import StaticFiles
from starlette.templating import Jinja2Templates

from vitrail import __version__
from vitrail.web.client import client_of, studio_of
from vitrail.web.errors import ApiError, detail_of, error
from vitrail.web.limits import Limits
from vitrail.web.middleware import SecurityMiddleware
from vitrail.web.model import ServedModel
from vitrail.web.queue import log
from vitrail.web.reference import reference
from vitrail.web.routes import router
from vitrail.web.state import ServerState

PAGE = "page.html"
ABOUT = (
    "Relevance maps of published methods for a model's decision on a picture or a text. Send a picture, ask what the "
    "model says, ask why. Errors come as {error: {what, fix}}."
)


def make_app(
    models: Sequence[ServedModel], limits: Limits | None = None, hosts: Sequence[str] | None = None
) -> FastAPI:
    """The application for some models.

    Args:
        models: What clients may use.
        limits: How much they may take.
        hosts: Names the server answers to; any by default.
    """
    limits = limits or Limits()
    app = FastAPI(
        title="Vitrail", version=__version__, description=ABOUT, openapi_url="/api/openapi.json", docs_url=None,
        redoc_url=None, lifespan=_lifespan,
    )  # fmt: skip
    app.state.studio = ServerState(models, limits)
    app.include_router(router)
    here = files("vitrail.web")
    app.state.templates = Jinja2Templates(str(here.joinpath("templates")))
    app.mount("/static", StaticFiles(directory=str(here.joinpath("static"))), "static")
    app.add_api_route("/", _page, include_in_schema=False, response_class=HTMLResponse)
    app.add_api_route("/r/{job}", _permalink, include_in_schema=False, response_class=HTMLResponse)
    app.add_api_route("/api/docs", _reference, include_in_schema=False, response_class=HTMLResponse)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _told)
    app.add_exception_handler(Exception, _broken)
    app.add_middleware(SecurityMiddleware, limits=limits, hosts=hosts)
    return app


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    app.state.studio.open()
    yield
    app.state.studio.close()


# -- the page ----------------------------------------------------------------------------------------------------------


def _shown(request: Request, job: str, status: int = 200) -> Response:
    client_of(request)  # who opens the page gets a cookie
    templates: Jinja2Templates = request.app.state.templates
    page = templates.TemplateResponse(request, PAGE, {"job": job, "version": __version__}, status)
    page.headers["Cache-Control"] = "no-store"
    return page


async def _page(request: Request) -> Response:
    return _shown(request, "")


async def _permalink(request: Request, job: str) -> Response:
    try:
        studio_of(request).job(job)
    except ApiError:
        return _shown(request, job[:60], 404)
    return _shown(request, job)


async def _reference(request: Request) -> Response:
    return HTMLResponse(reference(request.app.openapi()))


# -- errors ------------------------------------------------------------------------------------------------------------


async def _told(_: Request, problem: Exception) -> Response:
    assert isinstance(problem, HTTPException)
    said = detail_of(problem.detail)
    return JSONResponse(error(said["what"], said["fix"]), problem.status_code, problem.headers)


async def _invalid(_: Request, problem: Exception) -> Response:
    assert isinstance(problem, RequestValidationError)
    first: Any = next(iter(problem.errors()), {})
    place = ".".join(str(part) for part in first.get("loc", ()) if part != "body") or "the request"
    what = f"{place[:80]}: {str(first.get('msg', 'is not valid')).lower()}"
    return JSONResponse(error(what, "See /api/docs for what can be asked."), 422)


async def _broken(_: Request, problem: Exception) -> Response:
    log.error("a request failed", exc_info=problem)
    return JSONResponse(error("the server failed at this", "Try again; its log says what happened."), 500)
