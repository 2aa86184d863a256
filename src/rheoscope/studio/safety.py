"""Access control: allowed hosts and origins, the size of requests, and a token beyond loopback."""

import hmac
import ipaddress
import re
from collections import Counter
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass, field
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qs, urlsplit

from rheoscope.messages.message import Message
from rheoscope.studio.wire import encode_json

Scope = MutableMapping[str, Any]
AsgiMessage = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[AsgiMessage]]
Send = Callable[[AsgiMessage], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

CONTENT_SECURITY_POLICY = (
    "default-src 'self'; img-src 'self' data: blob:; style-src 'self'; script-src 'self'; connect-src 'self'; "
    "worker-src 'self' blob:; object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
SECURITY_HEADERS = {
    "content-security-policy": CONTENT_SECURITY_POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",  # the names of the page's files stay the same between versions
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
}
COOKIE_NAME = "rheoscope"
LOOPBACK_NAMES = ("127.0.0.1", "localhost", "::1")
HOST_PATTERN = re.compile(r"(?:\[([0-9a-fA-F:.]+)\]|([A-Za-z0-9._-]+))(?::[0-9]{1,5})?")
"""A Host header: a name, or an IPv6 address in brackets, and a port."""


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server that is bound to `host`.

    >>> is_loopback("127.0.0.1"), is_loopback("localhost"), is_loopback("0.0.0.0")
    (True, True, False)
    """
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


@dataclass(frozen=True)
class AccessRules:
    """The address that the server is bound to, the token that requests need (None: no token), and limits."""

    host: str = "127.0.0.1"
    token: str | None = None
    max_body_bytes: int = 256_000
    max_requests: int = 512
    """Maximum number of concurrent requests, event streams included."""
    max_client_requests: int = 256
    """Maximum number of concurrent requests from one address."""


@dataclass(eq=False)
class AccessGuard:
    """An ASGI middleware that passes a request on, or answers it with a one-line error."""

    app: App
    rules: AccessRules
    n_running: Counter[str] = field(default_factory=Counter, init=False)
    """Client address → number of its running requests."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        send_with_headers = _add_headers(send, self._token_cookie(scope))
        refusal = self._refusal(scope, headers)
        if refusal is not None:
            await _send_error(send_with_headers, *refusal)
            return
        client_address = _client_address(scope)
        self.n_running[client_address] += 1
        try:
            await self._call_with_body_limit(scope, receive, send_with_headers)
        finally:
            self.n_running[client_address] -= 1
            self.n_running += Counter()  # drops addresses without requests

    def _refusal(self, scope: Scope, headers: dict[str, str]) -> tuple[int, Message] | None:
        host, origin = headers.get("host", ""), headers.get("origin")
        if not self._is_known_host(host):
            return 403, Message("this server is not {host!r}; open it as http://127.0.0.1", host=host[:80])
        if origin is not None and not _is_origin_of(origin, host):
            return 403, Message("pages of {origin!r} may not use this server; open its own page", origin=origin[:80])
        if headers.get("sec-fetch-site") == "cross-site" and scope["path"].startswith("/api"):
            return 403, Message("pages of other sites may not use this server; open its own page")
        if self.rules.token is not None and not self._has_token(scope, headers):
            return 401, Message("this server needs its token; open the address that it printed at the start")
        if re.search(r"[\x00-\x1f\x7f]", scope["path"]):
            return 400, Message("the path must not contain control characters, got {path!r}", path=scope["path"][:80])
        content_length = headers.get("content-length", "0")
        if not content_length.isdecimal() or int(content_length) > self.rules.max_body_bytes:
            return 413, Message(
                "a request may have at most {limit:,} bytes, got {received!r}",
                limit=self.rules.max_body_bytes,
                received=content_length[:20],
            )
        n_client_requests, n_requests = self.n_running[_client_address(scope)], self.n_running.total()
        if n_client_requests >= self.rules.max_client_requests or n_requests >= self.rules.max_requests:
            return 429, Message("the server is busy: {count} requests are open. Try again soon.", count=n_requests)
        return None

    def _is_known_host(self, host: str) -> bool:
        """Whether a Host header names this server. This defeats DNS rebinding."""
        match = HOST_PATTERN.fullmatch(host)
        if match is None:
            return False
        host_name = (match[1] or match[2]).lower()
        is_bound_everywhere = self.rules.host in ("0.0.0.0", "::") and self.rules.token is not None
        return host_name in LOOPBACK_NAMES or host_name == self.rules.host or is_bound_everywhere

    def _has_token(self, scope: Scope, headers: dict[str, str]) -> bool:
        candidates = [headers.get("authorization", "").removeprefix("Bearer "), self._query_token(scope)]
        try:
            cookie = SimpleCookie(headers.get("cookie", "")).get(COOKIE_NAME)
            candidates.append("" if cookie is None else cookie.value)
        except CookieError:
            pass
        expected = (self.rules.token or "").encode()
        return any(hmac.compare_digest(candidate.encode(), expected) for candidate in candidates)

    def _query_token(self, scope: Scope) -> str:
        return parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]

    def _token_cookie(self, scope: Scope) -> str | None:
        """The token as a cookie, if the request has the token in its URL."""
        token = self.rules.token
        if token is None or not hmac.compare_digest(self._query_token(scope).encode(), token.encode()):
            return None
        return f"{COOKIE_NAME}={token}; HttpOnly; SameSite=Strict; Path=/"

    async def _call_with_body_limit(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Count the bytes of a body while it arrives, and refuse it beyond the limit."""
        n_bytes, has_started = 0, False

        async def receive_counted() -> AsgiMessage:
            nonlocal n_bytes
            message = await receive()
            n_bytes += len(message.get("body", b""))
            if n_bytes > self.rules.max_body_bytes:
                raise _TooLargeError
            return message

        async def send_and_record(message: AsgiMessage) -> None:
            nonlocal has_started
            has_started = True
            await send(message)

        try:
            await self.app(scope, receive_counted, send_and_record)
        except _TooLargeError:
            if not has_started:
                limit = self.rules.max_body_bytes
                await _send_error(send, 413, Message("a request may have at most {limit:,} bytes", limit=limit))


class _TooLargeError(Exception):
    pass


def _client_address(scope: Scope) -> str:
    return str((scope.get("client") or ("",))[0])


def _is_origin_of(origin: str, host: str) -> bool:
    """Whether the Origin header of a request names the host that the request was sent to."""
    try:
        return urlsplit(origin).netloc == host
    except ValueError:
        return False


def _add_headers(send: Send, cookie: str | None) -> Send:
    async def send_with_headers(message: AsgiMessage) -> None:
        if message["type"] == "http.response.start":
            response_headers = list(message.get("headers", []))
            added_values = SECURITY_HEADERS | ({} if cookie is None else {"set-cookie": cookie})
            added_headers = [(name.encode(), value.encode()) for name, value in added_values.items()]
            message = {
                **message,
                "headers": response_headers
                + [header for header in added_headers if header[0] not in dict(response_headers)],
            }
        await send(message)

    return send_with_headers


async def _send_error(send: Send, status: int, error: Message) -> None:
    body = encode_json({"error": error})
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
