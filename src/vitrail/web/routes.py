"""What can be asked over HTTP; every answer is made elsewhere."""

from __future__ import annotations

import asyncio
from io import BytesIO
from typing import Annotated, Any

from fastapi import APIRouter, File, Query, Request, Response, UploadFile
from fastapi.responses import JSONResponse, StreamingResponse
from PIL import Image

from vitrail.errors import VitrailError
from vitrail.web import schemas as bodies
from vitrail.web import validation as plan
from vitrail.web.attention import attention_of
from vitrail.web.client import client_of, studio_of
from vitrail.web.downloads import file_of, name_of
from vitrail.web.errors import ApiError, missing, refused
from vitrail.web.events import finished, stream
from vitrail.web.jobs import Job
from vitrail.web.samples import pixels_of, samples_of
from vitrail.web.state import ServerState, StoredImage

#: Likeliest classes of a prediction.
TOP = 10
CONTROL = "random"


def _problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    said = {
        403: "Made by somebody else", 404: "No such thing, or dropped to make room", 409: "Nothing finished yet",
        413: "Too many bytes", 415: "Not a picture", 422: "Something in the request is wrong",
        503: "The queue is full; see Retry-After",
    }  # fmt: skip
    return {status: {"model": bodies.ProblemBody, "description": said[status]} for status in statuses}


router = APIRouter(prefix="/api")
Model = Annotated[str, Query(max_length=100, description="A model's id", examples=["scenes"])]


def _png(pixels: Any) -> Response:
    held = BytesIO()
    Image.fromarray(pixels).save(held, format="PNG")
    return Response(held.getvalue(), media_type="image/png", headers={"Cache-Control": "private, max-age=3600"})


@router.get("/models", response_model=list[bodies.ModelCard], tags=["models"])
async def models(request: Request) -> Any:
    """The models there are, and which methods apply to each."""
    return [served.card for served in studio_of(request).models.values()]


@router.get("/samples", response_model=list[bodies.SampleCard], tags=["models"], responses=_problems(404, 422))
async def samples(request: Request, model: Model) -> Any:
    """Pictures or texts to try a model on."""
    served = studio_of(request).model(model)
    return [sample.card(served) for sample in samples_of(served)]


_PNG: dict[int | str, dict[str, Any]] = {200: {"content": {"image/png": {}}, "description": "A picture"}}


@router.get("/samples/{sample}.png", tags=["models"], response_class=Response, responses=_PNG | _problems(404, 422))
async def sample_png(request: Request, sample: str, model: Model) -> Response:
    """A sample's picture."""
    pixels = pixels_of(sample, studio_of(request).model(model))
    if pixels is None:
        raise missing(f"sample {sample[:60]!r}", "See /api/samples.")
    return _png(pixels)


# -- pictures ----------------------------------------------------------------------------------------------------------


def _shown(picture: StoredImage) -> dict[str, Any]:
    return {"picture": picture.id, "width": picture.width, "height": picture.height, "notes": list(picture.notes)}


def _image_model(studio: ServerState, name: str) -> Any:
    served = studio.model(name)
    if served.kind != "image":
        raise ApiError(422, f"{served.title} reads texts, not pictures", "Choose an image model.")
    return served


@router.post(
    "/pictures", response_model=bodies.PictureBody, tags=["pictures"], responses=_problems(404, 413, 415, 422, 503)
)
async def send_picture(
    request: Request,
    file: Annotated[UploadFile, File(description="A picture; its content decides, not its name")],
    model: Annotated[str | None, Query(max_length=100)] = None,
) -> Any:
    """Send a picture. Only what the models see of it is kept, for a while."""
    studio = studio_of(request)
    if model is not None:
        _image_model(studio, model)
    data = await file.read()
    return _shown(await asyncio.wrap_future(studio.chore(lambda: studio.add_upload(data))))


@router.post("/pictures/sample", response_model=bodies.PictureBody, tags=["pictures"], responses=_problems(404, 422))
async def take_sample(request: Request, body: bodies.SampleBody) -> Any:
    """Take an embedded scene as the picture."""
    studio = studio_of(request)
    served = _image_model(studio, body.model)
    return _shown(await asyncio.wrap_future(studio.chore(lambda: studio.add_sample(served, body.sample))))


@router.get("/pictures/{picture}.png", tags=["pictures"], response_class=Response, responses=_PNG | _problems(404, 422))
async def picture_png(request: Request, picture: str, model: Model) -> Response:
    """A picture exactly as a model sees it: cut, resized, upright."""
    studio = studio_of(request)
    served = _image_model(studio, model)
    return _png(studio.picture(picture).seen[served.id])


# -- quick questions ---------------------------------------------------------------------------------------------------


@router.post("/predict", response_model=bodies.PredictionBody, tags=["models"], responses=_problems(404, 422, 503))
async def predict(request: Request, body: bodies.InputSource) -> Any:
    """What the model says: its likeliest classes."""
    studio = studio_of(request)
    served = studio.model(body.model)
    source = studio.source(served, body.picture, body.text)
    said = await _asked(request, lambda: studio.say(served, body.picture, source))
    best = said.topk(min(TOP, len(said)))
    top = [
        {"index": int(i), "name": served.name_of(int(i)), "probability": float(p) if bool(p.isfinite()) else None}
        for p, i in zip(best.values, best.indices, strict=True)
    ]
    return {"top": top, "classes": served.class_count}


@router.post("/attention", response_model=bodies.AttentionAnswer, tags=["models"], responses=_problems(404, 422, 503))
async def attention(request: Request, body: bodies.AttentionBody) -> Any:
    """What a patch or a token attends to, in every layer and head."""
    studio = studio_of(request)
    served = studio.model(body.model)
    source = studio.source(served, body.picture, body.text)
    return JSONResponse(await _asked(request, lambda: attention_of(served, source, body.token)))


async def _asked(request: Request, work: Any) -> Any:
    """The answer to a quick question, in turn with everybody else's work."""
    try:
        return await asyncio.wrap_future(studio_of(request).queue.ask(client_of(request).key, work))
    except VitrailError as error:
        raise refused(error) from error


# -- jobs --------------------------------------------------------------------------------------------------------------

_JOB: dict[int | str, dict[str, Any]] = {
    202: {"model": bodies.JobBody, "description": "Queued; follow /api/jobs/ID/events"},
    200: {"model": bodies.JobBody, "description": "Finished, where wait=true"},
}
Wait = Annotated[bool, Query(description="Answer when the job is over; going away cancels it")]


@router.post("/explain", status_code=202, tags=["jobs"], responses=_JOB | _problems(404, 422, 503))
async def explain(request: Request, body: bodies.ExplainBody, wait: Wait = False) -> Response:
    """Explain a picture or a text by several methods for several classes; cheap methods share a pass and come first."""
    studio, client = studio_of(request), client_of(request)
    served = studio.model(body.model)
    source = studio.source(served, body.picture, body.text)
    targets = plan.classes(body.targets, served, studio.limits) or studio.predicted(served, body.picture, source)
    asked = plan.ask(body.methods, served, len(targets or [0]), body.seed, studio.limits)
    methods = {one.label: dict(one.extra) for one in asked}
    job = Job("explain", served, source, body.picture, methods, targets, body.seed, client.names)
    return await _answer(request, studio.start(job, asked, client), wait)


@router.post("/curves", status_code=202, tags=["jobs"], responses=_JOB | _problems(404, 422, 503))
async def curves(request: Request, body: bodies.CurvesBody, wait: Wait = False) -> Response:
    """Deletion and insertion curves of methods for one picture and class, beside the random control."""
    studio, client = studio_of(request), client_of(request)
    served = _image_model(studio, body.model)
    source = studio.source(served, body.picture, None)
    if served.class_count < 2:
        raise ApiError(422, f"{served.title} has a single output", "Curves need a model of several classes.")
    chosen = None if body.target is None else [body.target]
    targets = plan.classes(chosen, served, studio.limits) or studio.predicted(served, body.picture, source)
    asked = plan.ask([*body.methods, CONTROL], served, 1, body.seed, studio.limits)
    methods = {one.label: dict(one.extra) for one in asked}
    job = Job("curves", served, source, body.picture, methods, targets, body.seed, client.names, body.steps)
    return await _answer(request, studio.start(job, asked, client), wait)


async def _answer(request: Request, job: Job, wait: bool) -> Response:
    studio = studio_of(request)
    if wait:
        await finished(studio, job, request)
    return JSONResponse(studio.show(job), 200 if wait else 202)


@router.get("/jobs/{job}", response_model=bodies.JobBody, tags=["jobs"], responses=_problems(404))
async def show_job(request: Request, job: str) -> Any:
    """A job with all that is finished of it; anybody who knows its id may look."""
    studio = studio_of(request)
    return JSONResponse(studio.show(studio.job(job)))


@router.delete("/jobs/{job}", status_code=204, tags=["jobs"], responses=_problems(403, 404))
async def cancel_job(request: Request, job: str) -> Response:
    """Cancel a job; only who made it may."""
    studio = studio_of(request)
    found = studio.job(job)
    if not client_of(request).names & found.owners:
        raise ApiError(403, "this job was made by somebody else", "Only its maker can cancel it.")
    studio.cancel(found)
    return Response(status_code=204)


_EVENTS: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/event-stream": {}}, "description": "Events job, item and end"}
}


@router.get("/jobs/{job}/events", tags=["jobs"], response_class=Response, responses=_EVENTS | _problems(404))
async def job_events(request: Request, job: str) -> Response:
    """News of a job as they happen. When its maker has closed all streams of it, it is cancelled after a while."""
    studio = studio_of(request)
    news = stream(studio, studio.job(job), client_of(request))
    return StreamingResponse(news, media_type="text/event-stream", headers={"Cache-Control": "no-store"})


_FILE: dict[int | str, dict[str, Any]] = {200: {"content": {"*/*": {}}, "description": "The file"}}


@router.get("/jobs/{job}/{name}", tags=["jobs"], response_class=Response, responses=_FILE | _problems(404, 409, 503))
async def job_file(request: Request, job: str, name: str) -> Response:
    """What a job made: figure.png, figure.pdf, maps.safetensors, manifest.json, code.py; curves.csv of curves."""
    studio = studio_of(request)
    found = studio.job(job)
    file = file_of(found, name)
    make = (lambda: studio.drawn(lambda: file.make(found))) if file.drawn else (lambda: file.make(found))
    try:
        data = await asyncio.wrap_future(studio.chore(make))
    except VitrailError as error:
        raise refused(error) from error
    disposition = f'attachment; filename="{name_of(found, name)}"'
    return Response(data, media_type=file.media, headers={"Content-Disposition": disposition})
