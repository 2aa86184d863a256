"""The HTTP route that starts a generation. Its events are those of its job."""

from fastapi import APIRouter, Request, Response

from rheoscope.messages.message import Message
from rheoscope.studio.generation_stream import stream_generation
from rheoscope.studio.request_bodies import GenerationBody
from rheoscope.studio.responses import StudioState, json_response
from rheoscope.studio.served_state import wait_for_client

router = APIRouter(prefix="/api")


@router.post("/generations")
async def start_generation(studio: StudioState, body: GenerationBody, request: Request) -> Response:
    """Start to continue a text. The job ends when no client follows its events."""
    session = studio.session
    session.check_text(body.text)
    opened_model = session.get_model(body.model or session.first_model)
    model = await wait_for_client(opened_model.job, request)
    job = session.queue.submit("analysis", Message("generation"), lambda job: stream_generation(job, model, body))
    job.renew()
    return json_response({"job": session.queue.add_holder(job)})
