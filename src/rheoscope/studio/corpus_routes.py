"""The HTTP routes of a corpus run."""

from fastapi import APIRouter, Response

from rheoscope.messages.advice import Advice
from rheoscope.messages.message import Message
from rheoscope.studio.corpus import LiveCorpusRun
from rheoscope.studio.jobs import MissingError
from rheoscope.studio.request_bodies import Index
from rheoscope.studio.responses import StudioState, binary_response, json_response
from rheoscope.studio.served_state import Studio

router = APIRouter(prefix="/api")


def require_corpus_run(studio: Studio) -> LiveCorpusRun:
    if studio.corpus_run is None:
        raise MissingError(Message("this server shows no corpus"), Advice("", "rheoscope studio --corpus run"))
    return studio.corpus_run


@router.get("/corpus")
async def get_corpus(studio: StudioState) -> Response:
    return json_response(await studio.run_quick(None, require_corpus_run(studio).to_json))


@router.get("/corpus/{analysis}/{field}")
async def get_corpus_field(studio: StudioState, analysis: str, field: str) -> Response:
    corpus_run = require_corpus_run(studio)
    return binary_response(await studio.run_quick(None, lambda: corpus_run.pack_field(analysis, field)))


@router.get("/corpus/{analysis}/{field}/{layer}/{head}")
async def get_corpus_head(
    studio: StudioState, analysis: str, field: str, layer: Index, head: Index, piece: Index = 0
) -> Response:
    corpus_run = require_corpus_run(studio)
    reader_model = studio.session.get_model(studio.session.first_model).model  # its tokenizer splits the examples
    return json_response(
        await studio.run_quick(None, lambda: corpus_run.head_json(analysis, field, layer, head, piece, reader_model))
    )
