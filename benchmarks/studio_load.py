"""Many users at once: time to the first points of a text, mixed-up responses, and random requests.

    python benchmarks/studio_load.py [--clients 50] [--seconds 60] [--requests 10000]

The server is a process of its own (`rheoscope studio`); all clients share this one. Each client behaves like a page: it posts a new text
every 10 s, requests the points, follows the events, and cancels the job before the next text. The texts have 16 to 1,000 tokens. Half of
them are abandoned at once: the connection is closed without a word. The median time to the points of a text of 16 tokens may be 1 s, or
twice the time on an idle server if that is larger. No response may be an error, or belong to another text.

Random requests have hostile paths, hosts, headers and bodies. None may cause a status of 500 or more.
"""

import asyncio
import itertools
import json
import math
import os
import random
import statistics
import struct
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import httpx2
from studio import WORDS, serving
from timing import make_parser, store_rows

LENGTHS = (16, 64, 250, 1000)
NEW_TEXT_SECONDS = 10.0
ALLOWED_SECONDS, ALLOWED_RATIO = 1.0, 2.0


def make_text(n_tokens: int, draw: random.Random) -> str:
    """A text of about so many tokens, which no other client posts."""
    return " ".join(draw.choice(WORDS) for _ in range(n_tokens - 2))


@contextmanager
def serving_process() -> Iterator[str]:
    """The address of a server in a process of its own."""
    command = [sys.executable, "-m", "rheoscope", "studio", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().split()[2]
        finally:
            process.terminate()


@dataclass
class Tally:
    """What the clients saw."""

    statuses: Counter[str] = field(default_factory=Counter)
    seconds: dict[int, list[float]] = field(default_factory=lambda: {length: [] for length in LENGTHS})
    replaced: Counter[int] = field(default_factory=Counter)
    """Texts by length whose points did not arrive before the next text. Their time counts as infinite."""
    abandoned: int = 0


async def open_text(client: httpx2.AsyncClient, text: str, n_tokens: int, tally: Tally, stay: float) -> None:
    """Post a text, request its points, follow its events for `stay` seconds, and cancel its job."""
    start, job = time.perf_counter(), None
    try:
        async with asyncio.timeout(stay or None):
            response = await client.post("api/traces", json={"text": text})
            tally.statuses[str(response.status_code)] += 1
            if response.status_code != 200:
                return
            trace, job = response.json()["id"], response.json()["job"]
            points = await client.get(f"api/traces/{trace}/points")
    except TimeoutError:  # the next text replaces this one
        tally.replaced[n_tokens] += 1
        tally.seconds[n_tokens].append(math.inf)
        if job is not None:
            await client.delete(f"api/jobs/{job}")
        return
    tally.statuses[str(points.status_code)] += 1
    tally.seconds[n_tokens].append(time.perf_counter() - start)
    until = start + stay
    with_events = asyncio.create_task(follow(client, trace, text, points.content, tally))
    await asyncio.wait([with_events], timeout=max(0.0, until - time.perf_counter()))
    with_events.cancel()
    await asyncio.gather(with_events, return_exceptions=True)
    response = await client.delete(f"api/jobs/{job}")
    tally.statuses[str(response.status_code)] += 1


async def follow(client: httpx2.AsyncClient, trace: str, text: str, points: bytes, tally: Tally) -> None:
    """Follow the events of a text. The first one must be about this text, with as many tokens as there are points."""
    async with client.stream("GET", f"api/traces/{trace}/events") as stream:
        tally.statuses[str(stream.status_code)] += 1
        async for line in stream.aiter_lines():
            if line.startswith("data: ") and '"steps"' in line:
                header = json.loads(line.removeprefix("data: "))
                is_mixed = header["text"] != text or len(header["tokens"]) != n_points(points)
                tally.statuses["mixed"] += is_mixed
            elif line.startswith("event: error"):
                tally.statuses["failed job"] += 1


def n_points(envelope: bytes) -> int:
    """The number of tokens in an envelope of points."""
    (length,) = struct.unpack("<I", envelope[4:8])
    header = json.loads(envelope[8 : 8 + length])
    return next(array["shape"][1] for array in header["arrays"] if array["name"] == "points")


async def abandon(host: str, port: int, text: str) -> None:
    """Post a text and close the connection at once."""
    body = json.dumps({"text": text}).encode()
    _, writer = await asyncio.open_connection(host, port)
    head = f"POST /api/traces HTTP/1.1\r\nhost: {host}:{port}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    await writer.drain()
    writer.close()


async def run_client(base: str, seed: int, seconds: float, tally: Tally) -> None:
    """Post a new text every 10 s, and abandon every second one. The clients start at different times."""
    draw, host, port = random.Random(seed), httpx2.URL(base).host, httpx2.URL(base).port or 80
    start, stay = time.perf_counter(), min(NEW_TEXT_SECONDS, seconds / 2)
    await asyncio.sleep(draw.uniform(0, stay))
    async with httpx2.AsyncClient(base_url=base, timeout=60, verify=False) as client:
        for number in itertools.count(seed):
            if time.perf_counter() > start + seconds:
                return
            n_tokens, text_start = draw.choice(LENGTHS), time.perf_counter()
            text = make_text(n_tokens, draw)
            if number % 2:
                await abandon(host, port, text)
                tally.abandoned += 1
                await asyncio.sleep(stay)
            else:
                try:
                    await open_text(client, text, n_tokens, tally, stay)
                except httpx2.HTTPError as error:
                    tally.statuses[type(error).__name__] += 1
            await asyncio.sleep(max(0.0, text_start + stay - time.perf_counter()))


async def idle_seconds(base: str, rounds: int) -> float:
    """Median time to the points of a text of 16 tokens on a server without other clients."""
    tally, draw = Tally(), random.Random(-1)
    async with httpx2.AsyncClient(base_url=base, timeout=60, verify=False) as client:
        for _ in range(rounds + 2):
            await open_text(client, make_text(LENGTHS[0], draw), LENGTHS[0], tally, stay=0.0)
    return statistics.median(tally.seconds[LENGTHS[0]][2:])


def load_row(base: str, clients: int, seconds: float, rounds: int) -> dict[str, object]:
    tally = Tally()

    async def run() -> float:
        idle = await idle_seconds(base, rounds)
        await asyncio.gather(*(run_client(base, seed, seconds, tally) for seed in range(clients)))
        return idle

    idle = asyncio.run(run())
    medians = {length: statistics.median(times) for length, times in tally.seconds.items() if times}
    failures = {status: count for status, count in tally.statuses.items() if status not in ("200", "mixed")}
    return {
        "what": f"{clients} clients for {seconds:g} s",
        "idle s": idle,
        "median s by tokens": {
            str(length): round(median, 3) if math.isfinite(median) else None for length, median in medians.items()
        },
        "allowed s": max(ALLOWED_SECONDS, ALLOWED_RATIO * idle),
        "largest s of 16 tokens": max(tally.seconds[LENGTHS[0]], default=float("nan")),
        "texts": sum(map(len, tally.seconds.values())),
        "abandoned": tally.abandoned,
        "replaced before their points": {str(length): tally.replaced[length] for length in LENGTHS},
        "not 200": failures,
        "mixed": tally.statuses["mixed"],
        "load of the machine": os.getloadavg()[0],
    }


# Random requests

PARTS = (
    "%00",
    "%ff%fe",
    "..",
    "%2e%2e",
    "a" * 3000,
    "%F0%9F%99%82",
    "-1",
    "99999999999999999999",
    "nan",
    "<b>",
    "%0d%0a",
    "'",
    "state",
)
PATHS = (
    "/{}", "/api/{}", "/api/traces/{}", "/api/traces/{}/points", "/api/traces/{}/points?axes={}", "/api/traces/{}/weights/{}/{}",
    "/api/traces/{}/token/{}", "/api/traces/{}/analyses/{}", "/api/traces/{}/analyses/{}.csv?{}={}", "/api/jobs/{}",
    "/api/jobs/{}/events", "/api/corpus/{}/{}", "/assets/{}", "/?token={}", "/api/traces/{}/images/{}/{}",
)  # fmt: skip
HOSTS = (
    "127.0.0.1",
    "localhost:{port}",
    "evil.com@127.0.0.1",
    "[::1",
    "[::1]",
    "evil.com",
    "",
    "127.0.0.1:99999999",
    "\x01",
    "é",
)
BODIES = (
    b"",
    b"{",
    b"[]",
    b'{"text": 3}',
    b'{"text": "a", "window": -1}',
    b'{"source": "\\u0000"}',
    b'{"text": "\\ud800"}',
    b"\x00" * 99,
)


def random_request(draw: random.Random, port: int, trace: str) -> bytes:
    """A request with a random method, path, host, header and body."""
    template = draw.choice(PATHS)
    path = template.format(*(draw.choice((*PARTS, trace)) for _ in range(template.count("{}"))))
    host, body = draw.choice(HOSTS[:2] * 6 + HOSTS).replace("{port}", str(port)), draw.choice(BODIES)
    headers = draw.choice(
        ("", "origin: http://[\r\n", "cookie: rheoscope=\x7f;;=\r\n", "authorization: é\r\n", "range: bytes=9-1\r\n")
    )
    method = draw.choice(("GET", "GET", "POST", "DELETE", "HEAD", "PUT", "OPTIONS"))
    head = (
        f"{method} {path} HTTP/1.1\r\nhost: {host}\r\n{headers}connection: close\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    return head.encode("latin-1") + body


async def send_raw(host: str, port: int, request: bytes) -> int:
    """The status of the response to a request, or 0 if the server closed the connection."""
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(request)
        line = await asyncio.wait_for(reader.readline(), 30)
        return int(line.split()[1]) if line else 0
    finally:
        writer.close()


def random_row(base: str, n_requests: int) -> dict[str, object]:
    host, port = httpx2.URL(base).host, httpx2.URL(base).port or 80
    draw, statuses = random.Random(0), Counter[int]()
    trace = httpx2.post(f"{base}api/traces", json={"text": "a king", "lines": []}).json()["id"]
    requests = iter([random_request(draw, port, trace) for _ in range(n_requests)])

    async def work() -> None:
        for request in requests:
            statuses[await send_raw(host, port, request)] += 1

    async def run() -> None:
        await asyncio.gather(*(work() for _ in range(8)))

    asyncio.run(run())
    n_errors = sum(count for status, count in statuses.items() if status >= 500)
    counts = {str(status): count for status, count in sorted(statuses.items())}
    return {"what": f"{n_requests} random requests", "5xx": n_errors, "statuses": counts}


def main(argv: Sequence[str] | None = None) -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--requests", type=int, default=10_000)
    options = parser.parse_args(argv)
    if options.smallest:
        with serving() as (base, _):
            rows = [random_row(base, 40), load_row(base, clients=2, seconds=0.2, rounds=1)]
    else:
        seconds = min(options.seconds, 20.0) if options.quick else options.seconds
        n_requests = min(options.requests, 1000) if options.quick else options.requests
        with serving_process() as base:
            rows = [load_row(base, options.clients, seconds, rounds=15), random_row(base, n_requests)]
    for row in rows:
        values = {name: f"{value:.3g}" if isinstance(value, float) else value for name, value in row.items()}
        print("  ".join(f"{name}: {value}" for name, value in values.items()))
    store_rows("studio_load", rows, options.smallest or options.quick)


if __name__ == "__main__":
    main()
