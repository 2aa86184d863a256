"""The routes: what is asked, of whom, and how it goes out. Everything else happens in the files beside."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from fastapi import APIRouter, Depends, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException
from starlette.responses import StreamingResponse
from starlette.staticfiles import StaticFiles

from rheoscope import __version__
from rheoscope.report.json_file import as_json
from rheoscope.report.verdicts import QUESTIONS
from rheoscope.shapes import RheoscopeError
from rheoscope.studio import descriptions, detail_queries, head_detail, particle_simulation, wire
from rheoscope.studio.corpus import Run
from rheoscope.studio.csv_download import csv_of
from rheoscope.studio.edits import Edit
from rheoscope.studio.jobs import BusyError, CancelledError, Job, Log, MissingError
from rheoscope.studio.safety import App, Guard, Rules
from rheoscope.studio.session import UNTRAINED, Entry, NoAnswerError, Session
from rheoscope.studio.stored_example import Stored

if TYPE_CHECKING:
    import xarray

T = TypeVar("T")
BINARY, JSON = "application/octet-stream", "application/json"
KEEP_ALIVE = 15.0
"""Seconds of silence after which a stream of events says that it is still there."""
Number = Annotated[int, Field(ge=0, le=100_000)]


class Asked(BaseModel):
    """What a body may hold, and nothing besides."""

    model_config = ConfigDict(extra="forbid")


class OpenModel(Asked):
    source: str = Field(max_length=1000)
    untrained: bool = False


class NewTrace(Asked):
    text: str
    model: str | None = Field(default=None, max_length=1000)
    edits: list[Edit] = Field(default=[], max_length=32)
    untrained: bool = False
    questions: list[str] | None = Field(default=None, max_length=len(QUESTIONS))
    window: int | None = Field(default=None, ge=1, le=100_000)


class Pair(Asked):
    layer: Number
    head: Number
    query: Number
    key: Number


# What the routes stand on


@dataclass(frozen=True, eq=False)
class Studio:
    """The state of the server, the example that the page opens on, and a corpus run where one is shown."""

    session: Session
    stored: Stored | None
    run: Run | None

    def kept(self, trace: str, path: str, kind: str) -> bytes | None:
        """A stored answer about the example; its id says what it is, so that computing it would give the same."""
        return None if self.stored is None else self.stored.answer(trace + path, kind)

    def is_example(self, trace: str) -> bool:
        return self.stored is not None and trace == self.stored.id

    async def entry(self, name: str) -> Entry:
        """The text of an id; the example is computed when more is asked of it than is stored."""
        if self.stored is not None and self.is_example(name) and self.session.cache.get(name) is None:
            await self.trace(self.stored.model["id"], self.stored.text, [])
        return self.session.entry(name)

    async def trace(self, model: str, text: str, edits: list[Edit], window: int | None = None) -> tuple[Entry, bool]:
        """A text in a model; whoever asks before the model is open waits."""
        opened = self.session.opened(model)
        network = await asyncio.wrap_future(opened.job.result)
        return await self.quickly(lambda: self.session.trace(opened, network, text, edits, window))

    async def quickly(self, work: Callable[[], T]) -> T:
        """Work of a moment, in the lane for it."""
        return await asyncio.wrap_future(self.session.queue.begin("quick", "a look", lambda job: work()).result)

    async def answer(self, trace: str, name: str, request: Request) -> tuple[Entry, "xarray.Dataset"]:
        """The Dataset of an analysis, waited for; the work ends when the last who waits is gone."""
        entry = await self.entry(trace)
        job = await asyncio.to_thread(self.session.analysis, entry, name, dict(request.query_params))
        if not isinstance(job, Job):
            return entry, job
        held, waiting = self.session.queue.hold(job), asyncio.wrap_future(job.result)
        try:
            while not (await asyncio.wait([waiting], timeout=0.5))[0]:
                if await request.is_disconnected():
                    raise CancelledError("nobody waits for this answer any more")
            return entry, waiting.result()
        finally:
            waiting.cancel()  # what the work ends in is nobody's fault once nobody waits for it
            self.session.queue.release(held)

    def models(self) -> list[dict[str, Any]]:
        """Models that were opened; of the example's, what is stored, until it is open."""
        told = {name: one.told for name, one in list(self.session.models.items())}
        if self.stored is not None and not told.get(self.stored.model["id"], {}).get("ready"):
            told[self.stored.model["id"]] = self.stored.model
        return list(told.values())


def _studio(request: Request) -> Studio:
    return request.app.state.studio


Here = Annotated[Studio, Depends(_studio)]
router = APIRouter(prefix="/api")


def create(
    session: Session, rules: Rules, static: Path | None = None, stored: Stored | None = None, run: Run | None = None
) -> App:
    """The app with everything that stands before it; `static` is the built page, `run` a corpus that is shown."""
    app = FastAPI(title="Rheoscope studio", version=__version__, docs_url=None, redoc_url=None)
    app.state.studio = Studio(session, stored, run)
    answer_errors(app)
    app.include_router(router)
    if static is not None:
        app.mount("/", StaticFiles(directory=static, html=True))
    return Guard(app, rules)


# How answers go out


def said(value: Any, status: int = 200) -> Response:
    return Response(wire.written(value), status, media_type=JSON)


def sent(data: bytes) -> Response:
    return Response(data, media_type=BINARY)


def answer_errors(app: FastAPI) -> None:
    """Every error is one line; a fault of ours shows nothing of the inside."""
    status = {MissingError: 404, BusyError: 429, CancelledError: 409}

    @app.exception_handler(RheoscopeError)
    async def refused(request: Request, error: RheoscopeError) -> Response:
        return said({"error": " ".join(str(error).split())}, status.get(type(error), 400))

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"] if part not in ("body", "query", "path"))
        return said({"error": f"{place or 'the request'}: {first['msg']}; see /openapi.json for what is expected"}, 422)

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> Response:
        return said({"error": f"{error.detail}: {request.method} {request.url.path[:200]}"}, error.status_code)

    @app.exception_handler(Exception)
    async def fault(request: Request, error: Exception) -> Response:
        return said({"error": f"the server failed ({type(error).__name__}); see where it runs"}, 500)


async def events(log: Log) -> AsyncIterator[bytes]:
    """What a job tells, as server-sent events."""
    heard = log.listen()
    following: asyncio.Task[Any] | None = None
    try:
        while True:
            following = following or asyncio.ensure_future(anext(heard, None))
            done, _ = await asyncio.wait([following], timeout=KEEP_ALIVE)
            if not done:
                yield b": still here\n\n"
                continue
            event, following = following.result(), None
            if event is None:
                return
            yield b"event: " + event[0].encode() + b"\ndata: " + wire.written(event[1]) + b"\n\n"
    finally:
        if following is not None:
            following.cancel()


def streamed(log: Log) -> Response:
    return StreamingResponse(events(log), media_type="text/event-stream", headers={"cache-control": "no-cache"})


# Models


@router.get("/state")
def state(studio: Here) -> Response:
    example = None if studio.stored is None else studio.stored.id
    corpus = None if studio.run is None else studio.run.name
    return said(descriptions.of_state(studio.session, studio.models(), studio.session.first, example, corpus))


@router.get("/models")
def models(studio: Here) -> Response:
    sources = studio.session.sources
    return said({"models": studio.models(), "recent": sources.recent(), "sources": sources.listed()})


@router.post("/models")
def open_model(studio: Here, body: OpenModel) -> Response:
    opened = studio.session.open(body.source, body.untrained)
    return said({"job": studio.session.queue.hold(opened.job), "model": opened.told})


@router.get("/catalogue")
def catalogue() -> Response:
    return said(descriptions.of_catalogue())


# Texts


@router.post("/traces")
async def new_trace(studio: Here, body: NewTrace) -> Response:
    asked = body.model or studio.session.first
    name = asked.removesuffix(UNTRAINED) + UNTRAINED * (body.untrained or asked.endswith(UNTRAINED))
    entry, cached = await studio.trace(name, body.text, body.edits, body.window)
    questions = [] if studio.is_example(entry.id) else body.questions  # those of the example are answered already
    return said({"id": entry.id, "job": studio.session.tell(entry, questions)[1], "cached": cached})


@router.get("/traces/{trace}")
async def head(studio: Here, trace: str) -> Response:
    kept = studio.kept(trace, "", "json")
    return said((await studio.entry(trace)).head) if kept is None else Response(kept, media_type=JSON)


@router.get("/traces/{trace}/events")
async def trace_events(studio: Here, trace: str) -> Response:
    if studio.stored is not None and studio.is_example(trace):
        return streamed(studio.stored.told())
    entry = await studio.entry(trace)
    return streamed((entry.job or studio.session.tell(entry)[0]).log)


@router.get("/traces/{trace}/verdicts")
async def verdicts(studio: Here, trace: str) -> Response:
    kept = studio.kept(trace, "/verdicts", "json")
    if kept is not None:
        return Response(kept, media_type=JSON)
    return said(descriptions.of_verdicts((await studio.entry(trace)).so_far))


@router.get("/traces/{trace}/points")
async def points(studio: Here, trace: str, axes: str = "all", space: str = "sphere") -> Response:
    kept = studio.kept(trace, "/points", "bin") if (axes, space) == ("all", "sphere") else None
    if kept is not None:
        return sent(kept)
    entry = await studio.entry(trace)
    return sent(await studio.quickly(lambda: detail_queries.cloud(studio.session, entry, axes, space)))


# Analyses


@router.get("/traces/{trace}/analyses/{name}.csv")
async def as_csv(studio: Here, trace: str, name: str, request: Request) -> Response:
    _, dataset = await studio.answer(trace, name, request)
    return Response(csv_of(dataset), media_type="text/csv", headers=_saved_as(dataset, "csv"))


@router.get("/traces/{trace}/analyses/{name}.json")
async def as_json_file(studio: Here, trace: str, name: str, request: Request) -> Response:
    _, dataset = await studio.answer(trace, name, request)
    return Response(wire.written(as_json(dataset)), media_type=JSON, headers=_saved_as(dataset, "json"))


def _saved_as(dataset: "xarray.Dataset", kind: str) -> dict[str, str]:
    return {"content-disposition": f'attachment; filename="{dataset.attrs["analysis"]}.{kind}"'}


@router.get("/traces/{trace}/analyses/{name}")
async def analysis(studio: Here, trace: str, name: str, request: Request) -> Response:
    """The answer; a text that has none, asked as usual, is no fault of who asks: a reason comes in its place."""
    kept = None if request.query_params else studio.kept(trace, f"/analyses/{name}", "bin")
    if kept is not None:
        return sent(kept)
    try:
        entry, dataset = await studio.answer(trace, name, request)
    except NoAnswerError as error:
        if request.query_params:
            raise
        return sent(wire.packed({"name": name, "reason": " ".join(str(error).split())}, {}))
    return sent(await studio.quickly(lambda: studio.session.packed(entry, dataset)))


@router.post("/traces/{trace}/analyses/{name}")
async def begin_analysis(studio: Here, trace: str, name: str, request: Request) -> Response:
    entry = await studio.entry(trace)
    job = await asyncio.to_thread(studio.session.analysis, entry, name, dict(request.query_params))
    return said({"job": studio.session.queue.hold(job) if isinstance(job, Job) else None})


# One head, one token


@router.get("/traces/{trace}/weights/{layer}/{head}")
async def weights(studio: Here, trace: str, layer: Number, head: Number, kind: str = "weights") -> Response:
    kept = studio.kept(trace, f"/weights/{layer}/{head}", "bin") if kind == "weights" else None
    if kept is not None:
        return sent(kept)
    entry = await studio.entry(trace)
    return sent(await studio.quickly(lambda: detail_queries.head_map(entry, layer, head, kind)))


@router.get("/traces/{trace}/spectrum/{layer}/{head}")
async def spectrum(studio: Here, trace: str, layer: Number, head: Number) -> Response:
    kept = studio.kept(trace, f"/spectrum/{layer}/{head}", "json")
    if kept is not None:
        return Response(kept, media_type=JSON)
    entry = await studio.entry(trace)
    return said(await studio.quickly(lambda: detail_queries.spectrum(entry, layer, head)))


@router.get("/traces/{trace}/moves/{layer}/{head}")
async def moves(
    studio: Here, trace: str, layer: Number, head: Number, axes: str = "all", space: str = "sphere"
) -> Response:
    kept = studio.kept(trace, f"/moves/{layer}/{head}", "bin") if (axes, space) == ("all", "sphere") else None
    if kept is not None:
        return sent(kept)
    entry = await studio.entry(trace)
    return sent(await studio.quickly(lambda: head_detail.moves(studio.session, entry, layer, head, axes, space)))


@router.get("/traces/{trace}/images/{layer}/{head}")
async def images(studio: Here, trace: str, layer: Number, head: Number) -> Response:
    kept = studio.kept(trace, f"/images/{layer}/{head}", "bin")
    if kept is not None:
        return sent(kept)
    entry = await studio.entry(trace)
    return sent(await studio.quickly(lambda: head_detail.images(entry, layer, head)))


@router.post("/traces/{trace}/attribution")
async def attribution(studio: Here, trace: str, body: Pair) -> Response:
    entry = await studio.entry(trace)
    return said(await studio.quickly(lambda: detail_queries.why(entry, body.layer, body.head, body.query, body.key)))


@router.get("/traces/{trace}/lens")
async def lens(studio: Here, trace: str) -> Response:
    kept = studio.kept(trace, "/lens", "bin")
    if kept is not None:
        return sent(kept)
    entry = await studio.entry(trace)
    return sent(await studio.quickly(lambda: detail_queries.lens(entry)))


@router.get("/traces/{trace}/token/{position}")
async def token(studio: Here, trace: str, position: Number) -> Response:
    kept = studio.kept(trace, f"/token/{position}", "json")
    if kept is not None:
        return Response(kept, media_type=JSON)
    entry = await studio.entry(trace)
    return said(await studio.quickly(lambda: detail_queries.token(entry, position)))


@router.post("/dynamics")
async def dynamics(studio: Here, body: particle_simulation.Asked) -> Response:
    return sent(await studio.quickly(lambda: particle_simulation.dynamics(body)))


# A corpus


def shown(studio: Studio) -> Run:
    if studio.run is None:
        raise MissingError("no corpus is open here; start it with rheoscope studio --corpus DIR")
    return studio.run


@router.get("/corpus")
async def corpus(studio: Here) -> Response:
    return said(await studio.quickly(shown(studio).told))


@router.get("/corpus/{analysis}/{field}")
async def corpus_field(studio: Here, analysis: str, field: str) -> Response:
    run = shown(studio)
    return sent(await studio.quickly(lambda: run.field(analysis, field)))


@router.get("/corpus/{analysis}/{field}/{layer}/{head}")
async def corpus_head(
    studio: Here, analysis: str, field: str, layer: Number, head: Number, piece: Number = 0
) -> Response:
    run = shown(studio)
    reader = studio.session.opened(studio.session.first).model  # the run's own, or one that reads as it does
    return said(await studio.quickly(lambda: run.head(analysis, field, layer, head, piece, reader)))


# Jobs


@router.get("/jobs/{job}")
def follow(studio: Here, job: str) -> Response:
    one = studio.session.queue.job(job)
    return said({"name": one.name, "over": one.over, "told": dict(one.log.told)})


@router.get("/jobs/{job}/events")
async def job_events(studio: Here, job: str) -> Response:
    return streamed(studio.session.queue.job(job).log)


@router.delete("/jobs/{job}")
def cancel(studio: Here, job: str) -> Response:
    return said({"cancelled": studio.session.queue.release(job)})
