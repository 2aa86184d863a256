"""Half-sent requests: they end in time, and the oldest of a client makes room for the next."""

import asyncio
from typing import Any

import pytest

uvicorn = pytest.importorskip("uvicorn")
from uvicorn.server import ServerState  # noqa: E402

from rheoscope.studio.connections import ConnectionLimits, limited_connections  # noqa: E402

HALF_HEADER, HALF_BODY = b"GET /", b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 9\r\n\r\n1234"


class FakeTransport(asyncio.Transport):
    """A transport that records what the server writes, and whether it is closed."""

    def __init__(self, address: str) -> None:
        super().__init__({"peername": (address, 1), "sockname": ("127.0.0.1", 2)})
        self.written, self.is_closed = b"", False

    def write(self, data: Any) -> None:
        self.written += bytes(data)

    def close(self) -> None:
        self.is_closed = True

    abort = close

    def is_closing(self) -> bool:
        return self.is_closed

    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...


async def answer(scope: Any, receive: Any, send: Any) -> None:
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


class Server:
    """The protocol of a server, without sockets."""

    def __init__(self, **limits: Any) -> None:
        self.protocol = limited_connections(ConnectionLimits(**limits))
        self.config, self.state = uvicorn.Config(answer, log_level="error"), ServerState()

    def connect(self, data: bytes, address: str = "1.1.1.1") -> tuple[Any, FakeTransport]:
        connection, transport = self.protocol(self.config, self.state, {}), FakeTransport(address)
        connection.connection_made(transport)
        if data:
            connection.data_received(data)
        return connection, transport


@pytest.mark.parametrize("data", [HALF_HEADER, HALF_BODY, b""])
def test_a_half_sent_request_is_closed_in_time(data: bytes) -> None:
    async def run() -> None:
        _, transport = Server(request_seconds=0.0).connect(data)
        for _ in range(5):
            await asyncio.sleep(0)
        assert transport.is_closed

    asyncio.run(run())


def test_a_complete_request_is_answered_however_long_it_takes() -> None:
    async def run() -> None:
        connection, transport = Server(request_seconds=60.0).connect(HALF_BODY)
        assert connection.deadline is not None
        connection.data_received(b"56789")
        assert connection.deadline is None
        for _ in range(5):
            await asyncio.sleep(0)
        assert b"200 OK" in transport.written
        connection.data_received(HALF_HEADER)  # the next request on this connection
        assert connection.deadline is not None
        connection.connection_lost(None)

    asyncio.run(run())


def test_the_oldest_half_sent_request_of_a_client_makes_room() -> None:
    async def run() -> None:
        server = Server(max_half_sent=2)
        other = server.connect(HALF_HEADER, "2.2.2.2")[1]
        first, second, third = (server.connect(HALF_BODY)[1] for _ in range(3))
        assert [transport.is_closed for transport in (first, second, third, other)] == [True, False, False, False]

    asyncio.run(run())
