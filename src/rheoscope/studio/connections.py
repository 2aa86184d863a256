"""Connections of the server: a request must arrive in time, and one client cannot hold all connections."""

import asyncio
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol


@dataclass(frozen=True)
class ConnectionLimits:
    """The time that a request may take to arrive, and the number of half-sent requests that a client may have."""

    request_seconds: float = 10.0
    max_half_sent: int = 64


DEFAULT_LIMITS = ConnectionLimits()


def limited_connections(limits: ConnectionLimits = DEFAULT_LIMITS) -> type[H11Protocol]:
    """The protocol of a server with these limits, for `uvicorn.Config(http=…)`.

    A connection is closed if the headers and the body of a request do not arrive in time. A client with too many half-sent
    requests loses the oldest one. So a new request is always read.
    """
    half_sent: dict[str, dict[Any, None]] = defaultdict(dict)  # client address → its connections, the oldest first

    class LimitedConnection(H11Protocol):
        deadline: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._update()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._update()

        def connection_lost(self, exc: Exception | None) -> None:
            self._forget()
            super().connection_lost(exc)

        @property
        def _client_address(self) -> str:
            return self.client[0] if self.client else ""

        def _update(self) -> None:
            """Start the deadline if a request is half sent, and cancel it if the request is complete."""
            cycle = self.cycle
            if cycle is not None and not cycle.more_body and not cycle.response_complete:
                self._forget()
            elif self.deadline is None and not self.transport.is_closing():
                self.deadline = self.loop.call_later(limits.request_seconds, self.close_half_sent)
                connections = half_sent[self._client_address]
                connections[self] = None
                if len(connections) > limits.max_half_sent:
                    next(iter(connections)).close_half_sent()

        def _forget(self) -> None:
            if self.deadline is None:
                return
            self.deadline.cancel()
            self.deadline = None
            connections = half_sent[self._client_address]
            connections.pop(self, None)
            if not connections:
                del half_sent[self._client_address]

        def close_half_sent(self) -> None:
            self._forget()
            self.transport.abort()

    return LimitedConnection
