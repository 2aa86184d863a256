"""The HTTP routes of the studio, their error handlers and the event streams."""

import asyncio
import json
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.gzip import GZipMiddleware

from rheoscope import __version__
from rheoscope.catalogue import ANALYSIS_MODULES
from rheoscope.messages.message import Message
from rheoscope.report.json_file import dataset_to_json
from rheoscope.shapes import RheoscopeError
from rheoscope.studio import (
    corpus_routes,
    descriptions,
    detail_queries,
    generation_routes,
    head_detail,
    model_gallery,
    pairs,
    particle_simulation,
    report_routes,
    single_file,
    wire,
)
from rheoscope.studio.content_ids import UNTRAINED_SUFFIX
from rheoscope.studio.corpus import LiveCorpusRun
from rheoscope.studio.csv_download import dataset_to_csv
from rheoscope.studio.event_streams import event_response, event_stream, followed_events, held_events, no_events
from rheoscope.studio.features import features_of
from rheoscope.studio.jobs import BusyError, CancelledError, Job, MissingError
from rheoscope.studio.page_files import PageFiles
from rheoscope.studio.projected_points import DEFAULT_AXES, DEFAULT_PROJECTION
from rheoscope.studio.request_bodies import Index, NewTraceBody, OpenModelBody, QueryKeyBody, SourceBody, TokenIds
from rheoscope.studio.responses import JSON_TYPE, StudioState, binary_response, json_response
from rheoscope.studio.safety import AccessGuard, AccessRules, App
from rheoscope.studio.served_state import Studio, wait_for_client
from rheoscope.studio.session import NoResultError, Session
from rheoscope.studio.stored_example import StoredExample
from rheoscope.studio.training_runs import TrainingRuns

if TYPE_CHECKING:
    import xarray

MIN_COMPRESSED_BYTES = 1000
"""Responses below this size are not compressed, nor are event streams, whose events must not wait for each other."""


router = APIRouter(prefix="/api")


def create_app(
    session: Session,
    rules: AccessRules,
    page_folder: Path | None = None,
    stored_example: StoredExample | None = None,
    corpus_run: LiveCorpusRun | None = None,
    training_runs: TrainingRuns | None = None,
) -> App:
    """The ASGI app behind its access guard. `page_folder` is the built page."""
    app = FastAPI(title="Rheoscope studio", version=__version__, docs_url=None, redoc_url=None)
    app.state.studio = Studio(session, stored_example, corpus_run, training_runs)
    install_error_handlers(app)
    app.add_middleware(GZipMiddleware, minimum_size=MIN_COMPRESSED_BYTES, compresslevel=6)
    app.include_router(router)
    app.include_router(corpus_routes.router)
    app.include_router(report_routes.router)
    app.include_router(generation_routes.router)
    if page_folder is not None:
        app.include_router(report_routes.page_router)
        app.mount("/", PageFiles(directory=page_folder, html=True))
    return AccessGuard(app, rules)


# Errors and events


def install_error_handlers(app: FastAPI) -> None:
    """Answer every error with one message. An internal error shows only its type."""
    status_codes = {MissingError: 404, BusyError: 429, CancelledError: 409}

    @app.exception_handler(RheoscopeError)
    async def handle_refusal(request: Request, error: RheoscopeError) -> Response:
        return json_response({"error": error.on("page")}, status_codes.get(type(error), 400))

    @app.exception_handler(RequestValidationError)
    async def handle_invalid_request(request: Request, error: RequestValidationError) -> Response:
        first_error = error.errors()[0]
        location = ".".join(str(part) for part in first_error["loc"] if part not in ("body", "query", "path"))
        problem = Message("{problem} (see /openapi.json for the expected request)", problem=first_error["msg"])
        return json_response(
            {"error": Message("{field}: {problem}", field=location, problem=problem) if location else problem}, 422
        )

    @app.exception_handler(HTTPException)
    async def handle_http_error(request: Request, error: HTTPException) -> Response:
        path = request.url.path[:200]
        problem = Message("{problem}: {method} {path!r}", problem=error.detail, method=request.method, path=path)
        return json_response({"error": problem}, error.status_code)

    @app.exception_handler(Exception)
    async def handle_fault(request: Request, error: Exception) -> Response:
        problem = Message(
            "internal error ({kind}); the terminal of the server shows details", kind=type(error).__name__
        )
        return json_response({"error": problem}, 500)


# Models


@router.get("/state")
def get_state(studio: StudioState) -> Response:
    example_id = None if studio.stored_example is None else studio.stored_example.id
    corpus_name = None if studio.corpus_run is None else studio.corpus_run.name
    return json_response(
        descriptions.state_json(
            studio.session,
            studio.model_list(),
            studio.session.first_model,
            example_id,
            corpus_name,
            studio.training_runs is not None,
        )
    )


@router.get("/models")
def get_models(studio: StudioState) -> Response:
    sources = studio.session.sources
    return json_response(
        {"models": studio.model_list(), "recent": sources.recent_names(), "sources": sources.available_names()}
    )


@router.get("/gallery")
async def get_gallery(studio: StudioState) -> Response:
    return json_response(await studio.run_quick(None, lambda: model_gallery.gallery_json(studio.session)))


@router.post("/models")
def open_model(studio: StudioState, body: OpenModelBody) -> Response:
    opened_model = studio.session.open_model(body.source, body.untrained)
    return json_response({"job": studio.session.queue.add_holder(opened_model.job), "model": opened_model.json_dict})


@router.get("/catalogue")
def get_catalogue() -> Response:
    return Response(encode_catalogue(tuple(ANALYSIS_MODULES)), media_type=JSON_TYPE)


@lru_cache(maxsize=1)
def encode_catalogue(names: tuple[str, ...]) -> bytes:
    """The description of these analyses, which is the same for every visitor."""
    return wire.encode_json(descriptions.catalogue_json(names))


# Texts


@router.post("/traces")
async def create_trace(studio: StudioState, body: NewTraceBody, request: Request) -> Response:
    requested_model = body.model or studio.session.first_model
    model_id = requested_model.removesuffix(UNTRAINED_SUFFIX) + UNTRAINED_SUFFIX * (
        body.untrained or requested_model.endswith(UNTRAINED_SUFFIX)
    )
    entry, cached = await studio.get_or_trace(model_id, body.text, body.edits, body.window, request, body.target)
    lines = [] if studio.is_example(entry.id) else body.lines  # the story of the example is stored
    return json_response({"id": entry.id, "job": studio.session.start_story(entry, lines)[1], "cached": cached})


@router.post("/targets")
async def write_target(studio: StudioState, body: SourceBody, request: Request) -> Response:
    """The greedy output of an encoder-decoder for a source, which the page offers as a target."""
    studio.session.check_text(body.text)
    opened_model = studio.session.get_model(body.model or studio.session.first_model)
    model = await wait_for_client(opened_model.job, request)
    return json_response({"target": await studio.run_quick(None, lambda: pairs.greedy_target(model, body.text))})


@router.get("/traces/{trace}")
async def get_trace_header(studio: StudioState, trace: str) -> Response:
    stored_body = studio.stored_response(trace, "", "json")
    return (
        json_response((await studio.get_entry(trace)).header)
        if stored_body is None
        else Response(stored_body, media_type=JSON_TYPE)
    )


@router.get("/traces/{trace}/events")
async def stream_trace_events(studio: StudioState, trace: str) -> Response:
    if studio.stored_example is not None and studio.is_example(trace):
        return event_response(event_stream(studio.stored_example.replay_log()))
    entry = await studio.get_entry(trace)
    job = studio.session.start_story(entry)[0] if entry.job is None or entry.job.has_expired else entry.job
    return event_response(followed_events(job))


@router.get("/traces/{trace}/story")
async def get_story(studio: StudioState, trace: str) -> Response:
    stored_body = studio.stored_response(trace, "/story", "json")
    if stored_body is not None:
        return Response(stored_body, media_type=JSON_TYPE)
    return json_response(descriptions.story_json((await studio.get_entry(trace)).results))


@router.get("/traces/{trace}/points")
async def get_points(studio: StudioState, trace: str, axes: str = DEFAULT_AXES, space: str = "sphere") -> Response:
    stored_body = studio.stored_response(trace, "/points", "bin") if (axes, space) == DEFAULT_PROJECTION else None
    if stored_body is not None:
        return binary_response(stored_body)
    entry = await studio.get_entry(trace)
    await studio.open_axes_owner(axes)
    return binary_response(
        await studio.run_quick(entry, lambda: detail_queries.pack_cloud(studio.session, entry, axes, space))
    )


@router.get("/traces/{trace}/cost")
async def get_edit_cost(studio: StudioState, trace: str) -> Response:
    """How far the edits of a text change its predictions, and its loss before and after."""
    entry = await studio.get_entry(trace)
    return json_response(await studio.run_quick(entry, lambda: vars(studio.session.edit_cost(entry))))


@router.get("/traces/{trace}/page")
async def download_page(studio: StudioState, trace: str, language: Literal["en", "zh"] = "en") -> Response:
    """The journey of the predicting token in one HTML file that plays without a server."""
    entry = await studio.get_entry(trace)
    example = studio.stored_example if studio.is_example(trace) else None

    def write_page() -> bytes:
        return single_file.single_file(single_file.journey_files(studio.session, entry, example), entry.id, language)

    headers = {"content-disposition": 'attachment; filename="rheoscope.html"'}
    return Response(await studio.run_quick(entry, write_page), media_type="text/html", headers=headers)


# Analyses


@router.get("/traces/{trace}/analyses/{name}.csv")
async def download_csv(studio: StudioState, trace: str, name: str, request: Request) -> Response:
    _, dataset = await studio.analysis_result(trace, name, request)
    return Response(dataset_to_csv(dataset), media_type="text/csv", headers=_attachment_headers(dataset, "csv"))


@router.get("/traces/{trace}/analyses/{name}.json")
async def download_json(studio: StudioState, trace: str, name: str, request: Request) -> Response:
    _, dataset = await studio.analysis_result(trace, name, request)
    """A file in English: unlike the other responses, it contains messages as text."""
    content = json.dumps(dataset_to_json(dataset), ensure_ascii=False, allow_nan=False)
    return Response(content, media_type=JSON_TYPE, headers=_attachment_headers(dataset, "json"))


def _attachment_headers(dataset: "xarray.Dataset", extension: str) -> dict[str, str]:
    return {"content-disposition": f'attachment; filename="{dataset.attrs["analysis"]}.{extension}"'}


@router.get("/traces/{trace}/analyses/{name}")
async def get_analysis(studio: StudioState, trace: str, name: str, request: Request) -> Response:
    """The result of an analysis. With default settings, a text without a result gets a reason instead of an error."""
    stored_body = None if request.query_params else studio.stored_response(trace, f"/analyses/{name}", "bin")
    if stored_body is not None:
        return binary_response(stored_body)
    try:
        entry, dataset = await studio.analysis_result(trace, name, request)
    except NoResultError as error:
        if request.query_params:
            raise
        return binary_response(wire.pack_envelope({"name": name, "reason": error.on("page")}, {}))
    return binary_response(await studio.run_quick(entry, lambda: studio.session.pack_result(entry, dataset)))


@router.get("/traces/{trace}/analyses/{name}/tables")
async def get_tables(studio: StudioState, trace: str, name: str, request: Request) -> Response:
    """The numbers of an analysis as tables."""
    stored_body = None if request.query_params else studio.stored_response(trace, f"/analyses/{name}/tables", "json")
    if stored_body is not None:
        return Response(stored_body, media_type=JSON_TYPE)
    entry, dataset = await studio.analysis_result(trace, name, request)
    return json_response(await studio.run_quick(entry, lambda: studio.session.tables_json(entry, dataset)))


@router.post("/traces/{trace}/analyses/{name}")
async def start_analysis(studio: StudioState, trace: str, name: str, request: Request) -> Response:
    entry = await studio.get_entry(trace)
    outcome = await asyncio.to_thread(studio.session.result_or_job, entry, name, dict(request.query_params))
    return json_response({"job": studio.session.queue.add_holder(outcome) if isinstance(outcome, Job) else None})


@router.get("/traces/{trace}/analyses/{name}/progress")
async def stream_analysis_progress(studio: StudioState, trace: str, name: str, request: Request) -> Response:
    """The progress of an analysis, which is computed while it is followed or its result is awaited."""
    entry = await studio.get_entry(trace)
    outcome = await asyncio.to_thread(studio.session.result_or_job, entry, name, dict(request.query_params))
    return event_response(held_events(studio.session.queue, outcome) if isinstance(outcome, Job) else no_events())


# One head, one token


@router.get("/traces/{trace}/weights/{layer}/{head}")
async def get_head_map(studio: StudioState, trace: str, layer: Index, head: Index, kind: str = "weights") -> Response:
    stored_body = studio.stored_response(trace, f"/weights/{layer}/{head}", "bin") if kind == "weights" else None
    if stored_body is not None:
        return binary_response(stored_body)
    entry = await studio.get_entry(trace)
    return binary_response(
        await studio.run_quick(entry, lambda: detail_queries.pack_head_map(entry, layer, head, kind))
    )


@router.get("/traces/{trace}/cross/{layer}/{head}")
async def get_cross_map(studio: StudioState, trace: str, layer: Index, head: Index) -> Response:
    entry = await studio.get_entry(trace)
    return binary_response(await studio.run_quick(entry, lambda: pairs.pack_cross_map(entry, layer, head)))


@router.get("/traces/{trace}/spectrum/{layer}/{head}")
async def get_spectrum(studio: StudioState, trace: str, layer: Index, head: Index) -> Response:
    stored_body = studio.stored_response(trace, f"/spectrum/{layer}/{head}", "json")
    if stored_body is not None:
        return Response(stored_body, media_type=JSON_TYPE)
    entry = await studio.get_entry(trace)
    return json_response(await studio.run_quick(entry, lambda: detail_queries.spectrum_json(entry, layer, head)))


@router.get("/traces/{trace}/moves/{layer}/{head}")
async def get_displacements(
    studio: StudioState, trace: str, layer: Index, head: Index, axes: str = DEFAULT_AXES, space: str = "sphere"
) -> Response:
    path = f"/moves/{layer}/{head}"
    stored_body = studio.stored_response(trace, path, "bin") if (axes, space) == DEFAULT_PROJECTION else None
    if stored_body is not None:
        return binary_response(stored_body)
    entry = await studio.get_entry(trace)
    await studio.open_axes_owner(axes)
    return binary_response(
        await studio.run_quick(
            entry, lambda: head_detail.pack_displacements(studio.session, entry, layer, head, axes, space)
        )
    )


@router.get("/traces/{trace}/images/{layer}/{head}")
async def get_images(studio: StudioState, trace: str, layer: Index, head: Index) -> Response:
    stored_body = studio.stored_response(trace, f"/images/{layer}/{head}", "bin")
    if stored_body is not None:
        return binary_response(stored_body)
    entry = await studio.get_entry(trace)
    return binary_response(await studio.run_quick(entry, lambda: head_detail.pack_images(entry, layer, head)))


@router.post("/traces/{trace}/attribution")
async def get_attribution(studio: StudioState, trace: str, body: QueryKeyBody) -> Response:
    entry = await studio.get_entry(trace)
    return json_response(
        await studio.run_quick(
            entry,
            lambda: detail_queries.score_components_json(
                entry, body.layer, body.head, body.query, body.key, features_of(studio.session, entry, body.layer)
            ),
        )
    )


@router.get("/traces/{trace}/lens")
async def get_lens(studio: StudioState, trace: str) -> Response:
    stored_body = studio.stored_response(trace, "/lens", "bin")
    if stored_body is not None:
        return binary_response(stored_body)
    entry = await studio.get_entry(trace)
    return binary_response(await studio.run_quick(entry, lambda: detail_queries.pack_lens(entry)))


@router.get("/traces/{trace}/token/{position}")
async def get_token(studio: StudioState, trace: str, position: Index) -> Response:
    stored_body = studio.stored_response(trace, f"/token/{position}", "json")
    if stored_body is not None:
        return Response(stored_body, media_type=JSON_TYPE)
    entry = await studio.get_entry(trace)
    return json_response(await studio.run_quick(entry, lambda: detail_queries.token_json(entry, position)))


@router.get("/traces/{trace}/next/{step}")
async def get_next_tokens(studio: StudioState, trace: str, step: Index, ids: TokenIds) -> Response:
    """The probabilities of some tokens to come next, after a step."""
    entry, token_ids = await studio.get_entry(trace), list(map(int, ids.split(",")))
    return json_response(await studio.run_quick(entry, lambda: detail_queries.next_token_json(entry, step, token_ids)))


@router.post("/dynamics")
async def run_dynamics(studio: StudioState, body: particle_simulation.ParticleSettings) -> Response:
    return binary_response(await studio.run_quick(None, lambda: particle_simulation.simulate_particles(body)))


# Jobs


@router.get("/jobs/{job}")
def get_job(studio: StudioState, job: str) -> Response:
    followed_job = studio.session.queue.get_job(job)
    return json_response(
        {"name": followed_job.name, "over": followed_job.is_over, "events": dict(followed_job.log.events)}
    )


@router.get("/jobs/{job}/events")
async def stream_job_events(studio: StudioState, job: str) -> Response:
    return event_response(followed_events(studio.session.queue.get_job(job)))


@router.delete("/jobs/{job}")
def cancel_job(studio: StudioState, job: str) -> Response:
    return json_response({"cancelled": studio.session.queue.release(job)})
