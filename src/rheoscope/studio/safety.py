"""Who may ask: this machine's own page and nobody else's, small requests, and a token where others can reach the server."""

import hmac
import ipaddress
import json
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass, field
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qs, urlsplit

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

POLICY = (
    "default-src 'self'; img-src 'self' data: blob:; style-src 'self'; script-src 'self'; connect-src 'self'; "
    "worker-src 'self' blob:; object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",  # names of the page's files do not change when they do
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
}
COOKIE = "rheoscope"
OPEN = ("127.0.0.1", "localhost", "::1")


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server that is bound there.

    >>> is_loopback("127.0.0.1"), is_loopback("localhost"), is_loopback("0.0.0.0")
    (True, True, False)
    """
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


@dataclass(frozen=True)
class Rules:
    """`host` is where the server is bound; `token` is asked of everyone where there is one."""

    host: str = "127.0.0.1"
    token: str | None = None
    body_bytes: int = 256_000
    requests: int = 256
    """Requests that are answered at the same time; streams of events count too."""


@dataclass(eq=False)
class Guard:
    """What stands before the app: each request is let through, or answered with one line that says why not."""

    app: App
    rules: Rules
    running: int = field(default=0, init=False)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        sending = _with_headers(send, self._cookie(scope))
        refused = self._refused(scope, headers)
        if refused is not None:
            await _answer(sending, *refused)
            return
        self.running += 1
        try:
            await self._bounded(scope, receive, sending)
        finally:
            self.running -= 1

    def _refused(self, scope: Scope, headers: dict[str, str]) -> tuple[int, str] | None:
        host, origin = headers.get("host", ""), headers.get("origin")
        if not self._known(host):
            return 403, f"this server does not go by the name {host[:80]!r}; open it as http://127.0.0.1"
        if origin is not None and urlsplit(origin).netloc != host:
            return 403, f"a page of {origin[:80]!r} may not ask here; open the server's own page"
        if headers.get("sec-fetch-site") == "cross-site" and scope["path"].startswith("/api"):
            return 403, "a page of another site may not ask here; open the server's own page"
        if self.rules.token is not None and not self._has_token(scope, headers):
            return 401, "this server asks for its token; open the address that it printed when it started"
        length = headers.get("content-length", "0")
        if not length.isdecimal() or int(length) > self.rules.body_bytes:
            return 413, f"a request has at most {self.rules.body_bytes} bytes, got {length[:20]}; send less"
        if self.running >= self.rules.requests:
            return 429, f"{self.rules.requests} requests are open already; try again soon"
        return None

    def _known(self, host: str) -> bool:
        """Whether a Host header names this server: a name that a stranger's DNS points here does not."""
        name = urlsplit(f"//{host}").hostname or ""
        everywhere = self.rules.host in ("0.0.0.0", "::") and self.rules.token is not None
        return name in OPEN or name == self.rules.host or everywhere

    def _has_token(self, scope: Scope, headers: dict[str, str]) -> bool:
        given = [headers.get("authorization", "").removeprefix("Bearer "), self._in_query(scope)]
        try:
            kept = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
            given.append("" if kept is None else kept.value)
        except CookieError:
            pass
        wanted = (self.rules.token or "").encode()
        return any(hmac.compare_digest(one.encode(), wanted) for one in given)

    def _in_query(self, scope: Scope) -> str:
        return parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]

    def _cookie(self, scope: Scope) -> str | None:
        """The token as a cookie, for whoever came with it in the address."""
        token = self.rules.token
        if token is None or not hmac.compare_digest(self._in_query(scope).encode(), token.encode()):
            return None
        return f"{COOKIE}={token}; HttpOnly; SameSite=Strict; Path=/"

    async def _bounded(self, scope: Scope, receive: Receive, send: Send) -> None:
        """A body that comes in pieces is counted while it comes."""
        seen, began = 0, False

        async def counted() -> Message:
            nonlocal seen
            message = await receive()
            seen += len(message.get("body", b""))
            if seen > self.rules.body_bytes:
                raise _TooLargeError
            return message

        async def noting(message: Message) -> None:
            nonlocal began
            began = True
            await send(message)

        try:
            await self.app(scope, counted, noting)
        except _TooLargeError:
            if not began:
                await _answer(send, 413, f"a request has at most {self.rules.body_bytes} bytes; send less")


class _TooLargeError(Exception):
    pass


def _with_headers(send: Send, cookie: str | None) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            own = list(message.get("headers", []))
            named = HEADERS | ({} if cookie is None else {"set-cookie": cookie})
            more = [(name.encode(), value.encode()) for name, value in named.items()]
            message = {**message, "headers": own + [one for one in more if one[0] not in dict(own)]}
        await send(message)

    return sending


async def _answer(send: Send, status: int, line: str) -> None:
    body = json.dumps({"error": line}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
