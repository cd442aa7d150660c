"""The routes of the HTTP API."""

from __future__ import annotations

import asyncio
import re
import secrets
from dataclasses import replace
from io import BytesIO
from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, File, Query, Request, Response, UploadFile
from fastapi.responses import JSONResponse, StreamingResponse
from PIL import Image

from vitrail.errors import VitrailError
from vitrail.web import schemas
from vitrail.web.api_errors import ApiError, not_found, to_api_error
from vitrail.web.candidates import candidates
from vitrail.web.downloads import download_name, find_file
from vitrail.web.encoding import replace_non_finite
from vitrail.web.events import event_stream, wait_until_finished
from vitrail.web.jobs import Job
from vitrail.web.middleware import COOKIE
from vitrail.web.model_kind import shown_pixels
from vitrail.web.originals import enlargement_notes, geometry_json
from vitrail.web.page_targets import PageTarget
from vitrail.web.patch_removal import remove_patches
from vitrail.web.samples import sample_pixels, samples_for
from vitrail.web.served_model import ServedModel
from vitrail.web.server_state import Client, ServerState, StoredImage
from vitrail.web.token_attention import attention_from
from vitrail.web.validation import check_contrast, check_methods, check_targets
from vitrail.web.written_tokens import next_tokens

#: Number of classes in a prediction.
TOP_CLASSES = 10
CONTROL = "random"
_COOKIE_VALUE = re.compile(r"[A-Za-z0-9_-]{22}\Z")


def server_of(request: Request) -> ServerState:
    """The server's state."""
    server: ServerState = request.app.state.server
    return server


def client_of(request: Request) -> Client:
    """Identify the client by its cookie; a client without one gets a new cookie and is identified by its address too.

    `vitrail.web.middleware.SecurityMiddleware` adds the new cookie to the response.
    """
    cookie = request.cookies.get(COOKIE, "")
    if _COOKIE_VALUE.match(cookie):
        return Client(cookie, frozenset({cookie}))
    address = f"@{request.client.host}" if request.client else "@"
    new_cookie = getattr(request.state, "new_cookie", None)
    if new_cookie is None:
        new_cookie = request.state.new_cookie = secrets.token_urlsafe(16)
    return Client(address, frozenset({address, new_cookie}))


def _errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    descriptions = {
        403: "The job belongs to another client", 404: "Not found, or expired", 409: "No result is ready yet",
        413: "Too many bytes", 415: "Unsupported image format", 422: "Invalid request",
        503: "The queue is full; see Retry-After",
    }  # fmt: skip
    return {status: {"model": schemas.ErrorResponse, "description": descriptions[status]} for status in statuses}


router = APIRouter(prefix="/api")
Model = Annotated[str, Query(max_length=100, description="The id of a model", examples=["scenes"])]


def _png(pixels: Any) -> Response:
    buffer = BytesIO()
    Image.fromarray(pixels).save(buffer, format="PNG")
    return Response(buffer.getvalue(), media_type="image/png", headers={"Cache-Control": "private, max-age=3600"})


@router.get("/models", response_model=list[schemas.ModelInfo], tags=["models"])
async def models(request: Request) -> Any:
    """List the models and which methods apply to each."""
    return [served.info for served in server_of(request).models.values()]


@router.get("/samples", response_model=list[schemas.SampleInfo], tags=["models"], responses=_errors(404, 422))
async def samples(request: Request, model: Model) -> Any:
    """List sample images or texts for a model."""
    served = server_of(request).model(model)
    return [sample.to_json(served) for sample in samples_for(served)]


_PNG: dict[int | str, dict[str, Any]] = {200: {"content": {"image/png": {}}, "description": "The image"}}


@router.get("/samples/{sample}.png", tags=["models"], response_class=Response, responses=_PNG | _errors(404, 422))
async def sample_png(request: Request, sample: str, model: Model) -> Response:
    """Return a sample image."""
    pixels = sample_pixels(sample, server_of(request).model(model))
    if pixels is None:
        raise not_found(f"sample {sample[:60]!r}", "See /api/samples.")
    return _png(shown_pixels(pixels, len(pixels) // 2))


# -- images ------------------------------------------------------------------------------------------------------------


def _image_json(image: StoredImage, served: ServedModel | None) -> dict[str, Any]:
    seen, notes = None, list(image.notes)
    frames = served.input_shape[0] if served is not None and served.media == "video" else None
    if served is not None and served.media != "image":
        seen = {"box": [0.0, 0.0, 1.0, 1.0], "cropped": False, "squashed": False, "text": ""}
    elif served is not None:
        seen = geometry_json(served, image.width, image.height)
        notes += enlargement_notes(served, image.width, image.height)
    return {"picture": image.id, "width": image.width, "height": image.height, "notes": notes,
            "geometry": seen, "frames": frames}  # fmt: skip


def _image_model(server: ServerState, model_id: str) -> ServedModel:
    served = server.model(model_id)
    if served.kind != "image":
        raise ApiError(422, f"{served.title} is a text model", "Choose an image model.")
    return served


@router.post(
    "/pictures", response_model=schemas.ImageResponse, tags=["pictures"], responses=_errors(404, 413, 415, 422, 503)
)
async def upload_image(
    request: Request,
    file: Annotated[UploadFile, File(description="An image file; its content counts, not its name")],
    model: Annotated[str | None, Query(max_length=100)] = None,
) -> Any:
    """Upload an image. Its pixels, not the file, are kept for a limited time."""
    server = server_of(request)
    served = None if model is None else _image_model(server, model)
    client = client_of(request)
    work = server.run_in_background(client, lambda: server.add_upload(file.file.read(), client, served))
    return _image_json(await asyncio.wrap_future(work), served)


@router.post("/pictures/sample", response_model=schemas.ImageResponse, tags=["pictures"], responses=_errors(404, 422))
async def use_sample(request: Request, body: schemas.SampleRequest) -> Any:
    """Use a sample as the image."""
    server = server_of(request)
    served = _image_model(server, body.model)
    work = server.run_in_background(client_of(request), lambda: server.add_sample(served, body.sample))
    return _image_json(await asyncio.wrap_future(work), served)


@router.get("/pictures/{picture}.png", tags=["pictures"], response_class=Response, responses=_PNG | _errors(404, 422))
async def image_png(
    request: Request, picture: str, model: Model, frame: Annotated[int, Query(ge=0, le=10_000)] = 0
) -> Response:
    """Return an image as the model receives it: rotated, cropped and resized; of a video one frame."""
    server = server_of(request)
    served = _image_model(server, model)
    return _png(shown_pixels(server.image_for(served, picture), frame))


_NPY: dict[int | str, dict[str, Any]] = {200: {"content": {"application/octet-stream": {}}, "description": "The array"}}


@router.get("/pictures/{picture}.npy", tags=["pictures"], response_class=Response, responses=_NPY | _errors(404, 422))
async def image_npy(request: Request, picture: str, model: Model) -> Response:
    """Return an image, video or spectrogram as the model receives it, as bytes in a NumPy file."""
    server = server_of(request)
    buffer = BytesIO()
    np.save(buffer, server.image_for(_image_model(server, model), picture), allow_pickle=False)
    return Response(buffer.getvalue(), media_type="application/octet-stream")


@router.get("/pictures/{picture}", response_model=schemas.ImageResponse, tags=["pictures"], responses=_errors(404, 422))
async def get_image(request: Request, picture: str, model: Model) -> Any:
    """Return the size of a stored image, notes on its conversion, and which part of it the model sees."""
    server = server_of(request)
    served = _image_model(server, model)
    return _image_json(server.image(picture), served)


_JPEG: dict[int | str, dict[str, Any]] = {200: {"content": {"image/jpeg": {}}, "description": "The image"}}


@router.get(
    "/pictures/{picture}/original.jpg", tags=["pictures"], response_class=Response, responses=_JPEG | _errors(404)
)
async def original_jpg(request: Request, picture: str) -> Response:
    """Return a stored image before it is cropped, with at most 2048 pixels a side."""
    data = server_of(request).image(picture).original
    return Response(data, media_type="image/jpeg", headers={"Cache-Control": "private, max-age=3600"})


# -- predictions and attention -----------------------------------------------------------------------------------------


@router.post("/predict", response_model=schemas.PredictionResponse, tags=["models"], responses=_errors(404, 422, 503))
async def predict(request: Request, body: schemas.PredictRequest) -> Any:
    """Return the classes with the highest probability, and those that are asked for."""
    server = server_of(request)
    served = server.model(body.model)
    if served.target_kind != "class":
        return await _candidates(request, served, body)
    asked = check_targets(body.classes or None, served, server.limits) or []
    raw_input = server.raw_input(served, body.picture, body.text)
    probabilities = await _result(server.predict(client_of(request), served, body.picture, raw_input))
    best = probabilities.topk(min(TOP_CLASSES, len(probabilities)))

    def entry(index: int) -> dict[str, Any]:
        p = probabilities[index]
        return {"index": index, "name": served.class_name(index), "probability": float(p) if p.isfinite() else None}

    top = [entry(int(i)) for i in best.indices]
    return {"top": top, "asked": [entry(i) for i in asked if isinstance(i, int)], "classes": served.class_count}


async def _candidates(request: Request, served: ServedModel, body: schemas.PredictRequest) -> Any:
    """Prompts, boxes or regions of an image, or tokens that a model writes."""
    server = server_of(request)
    targets = check_targets([*body.classes, *body.targets], served, server.limits) if body.targets else []
    named = [target for target in targets or [] if isinstance(target, PageTarget)]
    raw_input = server.raw_input(served, body.picture, body.text)
    listing = next_tokens if served.target_kind == "token" else candidates
    work = server.queue.submit(client_of(request).key, lambda: listing(served, raw_input, named))
    return JSONResponse(replace_non_finite(await _result(work)))


@router.post("/attention", response_model=schemas.AttentionResponse, tags=["models"], responses=_errors(404, 422, 503))
async def attention(request: Request, body: schemas.AttentionRequest) -> Any:
    """Return the attention from a patch or a token, for each layer and head."""
    server = server_of(request)
    served = server.model(body.model)
    raw_input = server.raw_input(served, body.picture, body.text)
    client = client_of(request)
    return JSONResponse(
        await _result(server.queue.submit(client.key, lambda: attention_from(served, raw_input, body.token)))
    )


@router.post("/remove", response_model=schemas.RemoveResponse, tags=["models"], responses=_errors(404, 422, 503))
async def remove(request: Request, body: schemas.RemoveRequest) -> Any:
    """Return probabilities of an image, video or sound without some patches, and without as many others."""
    server = server_of(request)
    served = _image_model(server, body.model)
    raw_input = server.raw_input(served, body.picture, None)
    targets = check_targets(body.classes, served, replace(server.limits, targets=20)) or []
    client = client_of(request)
    work = server.queue.submit(client.key, lambda: remove_patches(served, raw_input, body.removed, targets))
    return JSONResponse(replace_non_finite(await _result(work)))


async def _result(future: Any) -> Any:
    """Wait for a future of the queue."""
    try:
        return await asyncio.wrap_future(future)
    except VitrailError as error:
        raise to_api_error(error) from error


# -- jobs --------------------------------------------------------------------------------------------------------------

_JOB: dict[int | str, dict[str, Any]] = {
    202: {"model": schemas.JobResponse, "description": "Queued; follow /api/jobs/ID/events"},
    200: {"model": schemas.JobResponse, "description": "Finished, with wait=true"},
}
Wait = Annotated[bool, Query(description="Respond when the job is finished; disconnecting cancels it")]


@router.post("/explain", status_code=202, tags=["jobs"], responses=_JOB | _errors(404, 422, 503))
async def explain(request: Request, body: schemas.ExplainRequest, wait: Wait = False) -> Response:
    """Explain an image or a text with several methods for several classes.

    Methods that share a pass finish first.
    """
    return await _start_maps("explain", request, body, wait)


@router.post("/check", status_code=202, tags=["jobs"], responses=_JOB | _errors(404, 422, 503))
async def check(request: Request, body: schemas.CheckRequest, wait: Wait = False) -> Response:
    """Check maps on the model and input they explain: whether they are better than chance, stable, class-specific.

    Maps that are not computed yet are computed first. See the documentation of `vitrail.Explanation.check`.
    """
    return await _start_maps("check", request, body, wait)


async def _start_maps(kind: str, request: Request, body: schemas.ExplainRequest, wait: bool) -> Response:
    server = server_of(request)
    served = server.model(body.model)
    raw_input = server.raw_input(served, body.picture, body.text)
    targets = check_targets(body.targets, served, server.limits)
    targets = targets or server.cached_prediction(served, body.picture, raw_input)
    contrast = check_contrast(body.contrast, targets, body.methods, served)
    methods = check_methods(body.methods, served, len(targets or [0]), body.seed, server.limits)
    options = {method.label: dict(method.extra_options) for method in methods}
    client = client_of(request)
    job = Job(kind, served, raw_input, body.picture, options, targets, body.seed, client.identities, contrast=contrast)
    return await _respond(request, server.start(job, methods, client), wait)


@router.post("/curves", status_code=202, tags=["jobs"], responses=_JOB | _errors(404, 422, 503))
async def curves(request: Request, body: schemas.CurvesRequest, wait: Wait = False) -> Response:
    """Compute deletion and insertion curves of methods and the random control for one image and target.

    Pixels are replaced for classes of images; otherwise patches are removed as in the check.
    """
    server = server_of(request)
    served = _image_model(server, body.model)
    raw_input = server.raw_input(served, body.picture, None)
    if served.target_kind == "class" and served.class_count < 2:
        raise ApiError(422, f"{served.title} has a single output", "Curves need a model with several classes.")
    targets = check_targets(None if body.target is None else [body.target], served, server.limits)
    targets = targets or server.cached_prediction(served, body.picture, raw_input)
    methods = check_methods([*body.methods, CONTROL], served, 1, body.seed, server.limits)
    options = {method.label: dict(method.extra_options) for method in methods}
    client = client_of(request)
    among = check_targets(body.among, served, replace(server.limits, targets=20)) if body.among else []
    others = tuple(one for one in among or () if one not in (targets or ()))
    job = Job(
        "curves", served, raw_input, body.picture, options, targets, body.seed, client.identities, body.steps,
        among=others,
    )  # fmt: skip
    return await _respond(request, server.start(job, methods, client), wait)


async def _respond(request: Request, job: Job, wait: bool) -> Response:
    server = server_of(request)
    if wait:
        await wait_until_finished(server, job, request)
    return JSONResponse(server.job_json(job), 200 if wait else 202)


@router.get("/jobs/{job}", response_model=schemas.JobResponse, tags=["jobs"], responses=_errors(404))
async def get_job(request: Request, job: str) -> Any:
    """Return a job with its finished results; the id is enough to access it."""
    server = server_of(request)
    return JSONResponse(server.job_json(server.job(job, client_of(request))))


@router.delete("/jobs/{job}", status_code=204, tags=["jobs"], responses=_errors(403, 404))
async def cancel_job(request: Request, job: str) -> Response:
    """Cancel a job; only the client that started it may."""
    server = server_of(request)
    found = server.job(job)
    if not client_of(request).identities & found.owners:
        raise ApiError(403, "this job belongs to another client", "Only the client that started it can cancel it.")
    server.cancel(found)
    return Response(status_code=204)


_EVENTS: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/event-stream": {}}, "description": "The events job, item and end"}
}


@router.get("/jobs/{job}/events", tags=["jobs"], response_class=Response, responses=_EVENTS | _errors(404))
async def job_events(request: Request, job: str) -> Response:
    """Stream the changes of a job as server-sent events.

    A job that nobody follows for some seconds is cancelled.
    """
    server = server_of(request)
    events = event_stream(server, server.job(job))
    return StreamingResponse(events, media_type="text/event-stream", headers={"Cache-Control": "no-store"})


_FILE: dict[int | str, dict[str, Any]] = {200: {"content": {"*/*": {}}, "description": "The file"}}


@router.get("/jobs/{job}/{name}", tags=["jobs"], response_class=Response, responses=_FILE | _errors(404, 409, 503))
async def job_file(request: Request, job: str, name: str) -> Response:
    """Download figure.png, figure.pdf, maps.safetensors, manifest.json or code.py; for curves also curves.csv."""
    server = server_of(request)
    found = server.job(job)
    file = find_file(found, name)

    def create() -> bytes:
        if file.uses_matplotlib:
            return server.draw(lambda: file.create(found, server.check_cache))
        return file.create(found, server.check_cache)

    try:
        data = await asyncio.wrap_future(server.run_in_background(client_of(request), create))
    except VitrailError as error:
        raise to_api_error(error) from error
    disposition = f'attachment; filename="{download_name(found, name)}"'
    return Response(data, media_type=file.media_type, headers={"Content-Disposition": disposition})
