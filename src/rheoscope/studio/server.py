"""The routes: what is asked, of whom, and how it goes out. Everything else happens in the files beside."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException
from starlette.responses import StreamingResponse
from starlette.staticfiles import StaticFiles

from rheoscope import __version__
from rheoscope.report.json_file import as_json
from rheoscope.report.verdicts import QUESTIONS
from rheoscope.shapes import RheoscopeError
from rheoscope.studio import facts, looks, particles, wire
from rheoscope.studio.download import csv_of
from rheoscope.studio.edits import Edit
from rheoscope.studio.safety import App, Guard, Rules
from rheoscope.studio.session import Entry, MissingError, Opened, Session
from rheoscope.studio.stored import Stored
from rheoscope.studio.work import BusyError, Cancelled, Job

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


class Pair(Asked):
    layer: Number
    head: Number
    query: Number
    key: Number


def create(session: Session, rules: Rules, static: Path | None = None, stored: Stored | None = None) -> App:
    """The app with everything that stands before it; `static` is the built page, `stored` the example it opens on."""
    app = FastAPI(title="Rheoscope studio", version=__version__, docs_url=None, redoc_url=None)
    answer_errors(app)
    models_of(app, session, stored)
    traces_of(app, session, stored)
    looks_of(app, session, stored)
    jobs_of(app, session)
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
    status = {MissingError: 404, BusyError: 429, Cancelled: 409}

    @app.exception_handler(RheoscopeError)
    @app.exception_handler(Cancelled)
    async def refused(request: Request, error: Exception) -> Response:
        line = "this work was cancelled; ask again" if isinstance(error, Cancelled) else str(error)
        return said({"error": " ".join(line.split())}, status.get(type(error), 400))

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


async def events(job: Job) -> AsyncIterator[bytes]:
    """What a job tells, as server-sent events."""
    heard = job.log.listen()
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


def streamed(job: Job) -> Response:
    return StreamingResponse(events(job), media_type="text/event-stream", headers={"cache-control": "no-cache"})


# Models


def models_of(app: FastAPI, session: Session, stored: Stored | None) -> None:
    def listed() -> list[dict[str, Any]]:
        told = {name: one.told for name, one in list(session.models.items())}
        if stored is not None and not told.get(stored.model["id"], {}).get("ready"):
            told[stored.model["id"]] = stored.model
        return list(told.values())

    @app.get("/api/state")
    def state() -> Response:
        return said(facts.of_state(session, listed(), session.first, None if stored is None else stored.id))

    @app.get("/api/models")
    def models() -> Response:
        recent = list(dict.fromkeys(one.source for one in reversed(list(session.models.values()))))
        return said({"models": listed(), "recent": recent, "sources": session.sources.listed()})

    @app.post("/api/models")
    def open_model(body: OpenModel) -> Response:
        opened = session.open(body.source, body.untrained)
        return said({"job": session.queue.hold(opened.job), "model": opened.told})

    @app.get("/api/catalogue")
    def catalogue() -> Response:
        return said(facts.of_catalogue())


async def model_of(session: Session, opened: Opened) -> Any:
    """The open model; whoever asks before it is open waits."""
    return await asyncio.wrap_future(opened.job.result)


async def quickly(session: Session, name: str, work: Callable[[], T]) -> T:
    """Work of a moment, in the lane for it."""
    return await asyncio.wrap_future(session.queue.begin("quick", name, lambda job: work()).result)


async def found(session: Session, stored: Stored | None, name: str) -> Entry:
    """The text of an id; the stored example is computed when more is asked of it than is stored."""
    entry = session.cache.get(name)
    if entry is not None or stored is None or name != stored.id:
        return entry if entry is not None else session.entry(name)
    opened = session.opened(stored.model["id"])
    model = await model_of(session, opened)
    entry, _ = await quickly(session, "the example", lambda: session.trace(opened, model, stored.text, ()))
    return session.entry(name)


# Texts


def traces_of(app: FastAPI, session: Session, stored: Stored | None) -> None:
    @app.post("/api/traces")
    async def new_trace(body: NewTrace) -> Response:
        name = (body.model or session.first).removesuffix(".untrained")
        opened = session.opened(name + ".untrained" * (body.untrained or (body.model or "").endswith(".untrained")))
        model = await model_of(session, opened)
        entry, cached = await quickly(session, "trace", lambda: session.trace(opened, model, body.text, body.edits))
        _, job = session.tell(entry, body.questions)
        return said({"id": entry.id, "job": job, "cached": cached})

    @app.get("/api/traces/{trace}")
    async def head(trace: str) -> Response:
        kept = None if stored is None or session.cache.get(trace) else stored.answer(trace, "json")
        return said((await found(session, stored, trace)).head) if kept is None else Response(kept, media_type=JSON)

    @app.get("/api/traces/{trace}/events")
    async def trace_events(trace: str) -> Response:
        entry = await found(session, stored, trace)
        return streamed(entry.job or session.tell(entry)[0])

    @app.get("/api/traces/{trace}/verdicts")
    async def verdicts(trace: str) -> Response:
        kept = None if stored is None or session.cache.get(trace) else stored.answer(f"{trace}/verdicts", "json")
        if kept is not None:
            return Response(kept, media_type=JSON)
        return said(facts.of_verdicts((await found(session, stored, trace)).so_far))

    @app.get("/api/traces/{trace}/points")
    async def points(trace: str, axes: str = "all", space: str = "sphere") -> Response:
        usual = axes == "all" and space == "sphere" and stored is not None and not session.cache.get(trace)
        kept = stored.answer(f"{trace}/points", "bin") if usual and stored is not None else None
        if kept is not None:
            return sent(kept)
        entry = await found(session, stored, trace)
        return sent(await quickly(session, "points", lambda: looks.cloud(session, entry, axes, space)))


# One analysis, one head, one token


def looks_of(app: FastAPI, session: Session, stored: Stored | None) -> None:
    async def waited(trace: str, name: str, request: Request) -> tuple[Entry, Any]:
        """The Dataset of an analysis; the work ends when its last listener is gone."""
        entry = await found(session, stored, trace)
        job = await asyncio.to_thread(session.analysis, entry, name, dict(request.query_params))
        if not isinstance(job, Job):
            return entry, job
        held = session.queue.hold(job)
        try:
            waiting = asyncio.wrap_future(job.result)
            while not (await asyncio.wait([waiting], timeout=0.5))[0]:
                if await request.is_disconnected():
                    raise Cancelled
            return entry, waiting.result()
        finally:
            session.queue.release(held)

    @app.get("/api/traces/{trace}/analyses/{name}.csv")
    async def as_csv(trace: str, name: str, request: Request) -> Response:
        text = csv_of((await waited(trace, name, request))[1])
        return Response(text, media_type="text/csv", headers=_saved_as(f"{name}.csv"))

    @app.get("/api/traces/{trace}/analyses/{name}.json")
    async def as_json_file(trace: str, name: str, request: Request) -> Response:
        value = as_json((await waited(trace, name, request))[1])
        return Response(wire.written(value), media_type=JSON, headers=_saved_as(f"{name}.json"))

    @app.get("/api/traces/{trace}/analyses/{name}")
    async def analysis(trace: str, name: str, request: Request) -> Response:
        plain = stored is not None and not request.query_params and not session.cache.get(trace)
        kept = stored.answer(f"{trace}/analyses/{name}", "bin") if plain and stored is not None else None
        if kept is not None:
            return sent(kept)
        entry, dataset = await waited(trace, name, request)
        return sent(await quickly(session, "picture", lambda: session.packed(entry, dataset)))

    @app.post("/api/traces/{trace}/analyses/{name}")
    async def begin_analysis(trace: str, name: str, request: Request) -> Response:
        entry = await found(session, stored, trace)
        job = await asyncio.to_thread(session.analysis, entry, name, dict(request.query_params))
        return said({"job": session.queue.hold(job) if isinstance(job, Job) else None})

    @app.get("/api/traces/{trace}/weights/{layer}/{head}")
    async def weights(trace: str, layer: Number, head: Number, kind: str = "weights") -> Response:
        plain = kind == "weights" and stored is not None and not session.cache.get(trace)
        kept = stored.answer(f"{trace}/weights/{layer}/{head}", "bin") if plain and stored is not None else None
        if kept is not None:
            return sent(kept)
        entry = await found(session, stored, trace)
        return sent(await quickly(session, "map", lambda: looks.head_map(entry, layer, head, kind)))

    @app.get("/api/traces/{trace}/spectrum/{layer}/{head}")
    async def spectrum(trace: str, layer: Number, head: Number) -> Response:
        return await look(trace, lambda entry: looks.spectrum(entry, layer, head))

    @app.post("/api/traces/{trace}/attribution")
    async def attribution(trace: str, body: Pair) -> Response:
        return await look(trace, lambda entry: looks.why(entry, body.layer, body.head, body.query, body.key))

    @app.get("/api/traces/{trace}/token/{position}")
    async def token(trace: str, position: Number) -> Response:
        return await look(trace, lambda entry: looks.token(entry, position))

    async def look(trace: str, at: Callable[[Entry], dict[str, Any]]) -> Response:
        entry = await found(session, stored, trace)
        return said(await quickly(session, "look", lambda: at(entry)))

    @app.post("/api/dynamics")
    async def dynamics(body: particles.Asked) -> Response:
        return sent(await quickly(session, "dynamics", lambda: particles.dynamics(body)))


def _saved_as(name: str) -> dict[str, str]:
    return {"content-disposition": f'attachment; filename="{name}"'}


# Jobs


def jobs_of(app: FastAPI, session: Session) -> None:
    def held(job: str) -> Job:
        found = session.queue.job(job)
        if found is None:
            raise MissingError(f"no job {job[:40]!r} is here (any more)")
        return found

    @app.get("/api/jobs/{job}")
    def follow(job: str) -> Response:
        one = held(job)
        return said({"name": one.name, "over": one.over, "told": dict(one.log.told)})

    @app.get("/api/jobs/{job}/events")
    async def job_events(job: str) -> Response:
        return streamed(held(job))

    @app.delete("/api/jobs/{job}")
    def cancel(job: str) -> Response:
        return said({"cancelled": session.queue.release(job)})
