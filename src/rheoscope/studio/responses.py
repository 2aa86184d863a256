"""Responses of the routes as JSON or bytes, and the state that routes depend on."""

from typing import Annotated, Any

from fastapi import Depends, Request, Response

from rheoscope.studio import wire
from rheoscope.studio.served_state import Studio

BINARY_TYPE, JSON_TYPE = "application/octet-stream", "application/json"


def _get_studio(request: Request) -> Studio:
    return request.app.state.studio


StudioState = Annotated[Studio, Depends(_get_studio)]


def json_response(value: Any, status: int = 200) -> Response:
    return Response(wire.encode_json(value), status, media_type=JSON_TYPE)


def binary_response(data: bytes) -> Response:
    return Response(data, media_type=BINARY_TYPE)
