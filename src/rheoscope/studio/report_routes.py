"""The HTTP routes of cards, of the atlas, of comparisons and of training runs, and the addresses of their views."""

from fastapi import APIRouter, Request, Response
from starlette.responses import RedirectResponse

from rheoscope.messages.advice import Advice
from rheoscope.messages.message import Message
from rheoscope.studio.cards import atlas_json, card_json
from rheoscope.studio.compared_models import comparison_job, shares_space
from rheoscope.studio.jobs import MissingError
from rheoscope.studio.responses import JSON_TYPE, StudioState, json_response
from rheoscope.studio.served_state import Studio, wait_for_client
from rheoscope.studio.training_runs import TrainingRuns

router = APIRouter(prefix="/api")
page_router = APIRouter()


@page_router.get("/card")
@page_router.get("/atlas")
@page_router.get("/learning")
def open_view(request: Request) -> Response:
    """The short address of a view, which is in the hash of the page."""
    return RedirectResponse(f"./#view={request.url.path.rpartition('/')[2]}")


@router.get("/cards/{model:path}")
async def get_card(studio: StudioState, model: str, request: Request) -> Response:
    stored_body = studio.stored_card(model)
    if stored_body is not None:
        return Response(stored_body, media_type=JSON_TYPE)
    opened_model = studio.session.get_model(model)
    loaded_model = await wait_for_client(opened_model.job, request)
    return json_response(await studio.run_quick(None, lambda: card_json(loaded_model, opened_model.untrained)))


@router.get("/atlas")
async def get_atlas(studio: StudioState) -> Response:
    return json_response(await studio.run_quick(None, atlas_json))


@router.get("/traces/{trace}/comparison/{other}")
async def get_comparison(studio: StudioState, trace: str, other: str, request: Request) -> Response:
    """What differs between the models of two traces of one text. The job ends when its client disconnects."""
    first, second = await studio.get_entry(trace), await studio.get_entry(other)
    job = comparison_job(studio.session, first, second)
    holder_id = studio.session.queue.add_holder(job)
    try:
        return json_response(await wait_for_client(job, request))
    finally:
        studio.session.queue.release(holder_id)


@router.get("/traces/{trace}/comparison/{other}/space")
async def get_common_space(studio: StudioState, trace: str, other: str) -> Response:
    """Whether the clouds of two traces can be shown on the same axes."""
    first, second = await studio.get_entry(trace), await studio.get_entry(other)
    return json_response({"shared": await studio.run_quick(first, lambda: shares_space(first, second))})


def require_training_runs(studio: Studio) -> TrainingRuns:
    if studio.training_runs is None:
        raise MissingError(Message("this server shows no training runs"), Advice("", "rheoscope studio --runs ."))
    return studio.training_runs


@router.get("/runs")
async def get_runs(studio: StudioState) -> Response:
    return json_response(await studio.run_quick(None, require_training_runs(studio).list_json))


@router.get("/runs/{run:path}")
async def get_run(studio: StudioState, run: str) -> Response:
    runs = require_training_runs(studio)
    return json_response(await studio.run_quick(None, lambda: runs.run_json(run)))
