"""Latency, payload size and load of the studio's server, and frame times of its page.

    python benchmarks/studio.py [--clients 50] [--seconds 60]

The server (uvicorn in a thread) and its clients run in this process and share its cores, so the times are upper bounds. The limits are
1 s for the first responses, 2 s for the points of a text of 64 tokens, 1.5 s for an edit of one head, and 4 MB for the data of
1024 tokens. Under load, there must be no error and no mixed-up response, and memory must return to within 10 %.

With Playwright, Chromium and the built page, a visitor (page_visitor.py) opens the example at three sizes of the window, enters a text,
edits a head, hovers over tokens and takes the tour with the keyboard. The example must be painted and its points drawn within 1 s, the
points of the own text within 1.5 s, the bars after an edit within 1 s, and a hovered token within 50 ms. A frame of 1024 tokens that
move through 24 half-layers may take 20 ms of script. Script and CPU times are Chromium's metrics of the page's main thread.
"""

import asyncio
import itertools
import json
import random
import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import httpx2
import torch
import uvicorn
from page_visitor import (
    CpuClock,
    find_browser,
    open_page,
    tour_row,
    visit_rows,
)
from timing import make_parser, store_rows

import rheoscope as rs
from rheoscope.models.config import Config
from rheoscope.models.transformer import Transformer
from rheoscope.studio.model_sources import ModelSources
from rheoscope.studio.safety import AccessRules
from rheoscope.studio.server import create_app
from rheoscope.studio.session import Limits, Session
from rheoscope.studio.startup import (
    DEFAULT_OPTIONS,
    bind_socket,
    page_address,
    server_config,
    share_process,
    start_session,
)
from rheoscope.studio.stored_example import EXAMPLE_FOLDER, PAGE_FOLDER, load_example

WORDS = (
    "the",
    "king",
    "kept",
    "his",
    "gold",
    "in",
    "a",
    "ship",
    "and",
    "old",
    "river",
    "went",
    "down",
    "to",
    "great",
    "sea",
)


def text(n_words: int, seed: int) -> str:
    """A different text for every seed."""
    draw = random.Random(seed)
    return f"{seed}: " + " ".join(draw.choice(WORDS) for _ in range(n_words))


def default_session() -> Session:
    return start_session(DEFAULT_OPTIONS, Limits(max_cache_bytes=50_000_000))


@contextmanager
def serving(make_session: Callable[[], Session] = default_session) -> Iterator[tuple[str, Any]]:
    """The address of a running server, and its session."""
    share_process()
    session, server_socket = make_session(), bind_socket("127.0.0.1", 0)
    page = PAGE_FOLDER if (PAGE_FOLDER / "index.html").exists() else None
    app = create_app(
        session,
        AccessRules(),
        page,
        load_example(PAGE_FOLDER / EXAMPLE_FOLDER) if make_session is default_session else None,
    )
    server = uvicorn.Server(server_config(app))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [server_socket]})
    thread.start()
    try:
        yield page_address("127.0.0.1", server_socket.getsockname()[1], None), session
    finally:
        server.should_exit = True
        thread.join()
        session.close()
        server_socket.close()


def milliseconds(run: Any) -> float:
    start = time.perf_counter()
    run()
    return 1000 * (time.perf_counter() - start)


def first_answers(client: httpx2.Client) -> dict[str, object]:
    """The requests of a page before it paints. `make studio` writes the stored example; without it, only the state is requested."""
    example = client.get("api/state").json()["example"]
    trace_paths = [] if example is None else [f"api/traces/{example}{end}" for end in ("", "/points", "/story")]
    paths = ["api/state", "api/catalogue", *trace_paths]
    elapsed_ms = milliseconds(lambda: [client.get(path).raise_for_status() for path in paths])
    return {"what": "first answers", "stored example": example is not None, "ms": elapsed_ms, "bar": 1000}


def to_points(client: httpx2.Client, posted_text: str, edits: Sequence[dict[str, Any]] = ()) -> bytes:
    """Post a text, fetch its points and cancel its story."""
    posted = client.post("api/traces", json={"text": posted_text, "edits": list(edits)}).raise_for_status().json()
    points = client.get(f"api/traces/{posted['id']}/points").raise_for_status().content
    client.delete(f"api/jobs/{posted['job']}")
    return points


def edit_times(client: httpx2.Client, rounds: int) -> list[dict[str, object]]:
    """Median times over texts that are new to the server."""
    edit = {"layer": 3, "head": 1, "part": "M", "operation": "symmetric"}
    client.post("api/traces", json={"text": "a", "lines": []})  # loads the model
    plain_ms = [milliseconds(lambda seed=seed: to_points(client, text(50, seed))) for seed in range(rounds)]
    edited_ms = [milliseconds(lambda seed=seed: to_points(client, text(50, seed), [edit])) for seed in range(rounds)]
    return [
        {"what": "64 tokens to points", "ms": statistics.median(plain_ms), "bar": 2000},
        {"what": "an edit of one head", "ms": statistics.median(edited_ms), "bar": 1500},
    ]


def payload(client: httpx2.Client, n_words: int) -> dict[str, object]:
    """Bytes that a page needs to draw a long text and one of its heads."""
    posted = client.post("api/traces", json={"text": text(n_words, 0), "lines": []}).raise_for_status().json()
    trace_path = f"api/traces/{posted['id']}"
    size = sum(
        len(client.get(f"{trace_path}{end}").raise_for_status().content) for end in ("", "/points", "/weights/0/0")
    )
    tokens = len(client.get(trace_path).json()["tokens"])
    return {"what": f"payload of {tokens} tokens", "bytes": size, "bar": 4_000_000}


# Measurements in a browser

COUNT_FRAMES = "() => { window.frames_seen = 0; const count = () => { window.frames_seen++; requestAnimationFrame(count) }; count() }"


def deep_session(layers: int) -> Session:
    """A session with a narrow untrained model of so many layers. The page draws three directions of any model."""

    def load(source: str | None, **options: Any) -> Any:
        torch.manual_seed(0)
        shipped = rs.load()
        size = Config(shipped.view.embed.shape[0], width=32, depth=layers, heads=4, hidden=64, context=1024)
        return rs.load(Transformer(size), tokenizer=shipped.tokenizer)

    session = Session(load, ModelSources(), Limits())
    session.open_model("default")
    return session


def first_paint(browser: tuple[Any, str], base: str) -> dict[str, object]:
    """Time from the request of the page to its first paint, and to the points of the stored example."""
    paint_script = "performance.getEntriesByType('paint').map((entry) => entry.startTime)"
    points_script = (
        "performance.getEntriesByType('resource').filter((e) => /points/.test(e.name)).map((e) => e.responseEnd)"
    )
    with open_page(browser) as page:
        page.goto(base)
        page.wait_for_selector("canvas[data-ready=yes]")
        paint, points = page.evaluate(paint_script), page.evaluate(points_script)
    return {"what": "the example on the page", "points ms": points[0], "ms": paint[0], "bar": 1000}


def animation_frames(browser: tuple[Any, str], layers: int, n_words: int) -> dict[str, object]:
    """Milliseconds of script per frame while the animation plays all half-layers of a long text."""
    with serving(partial(deep_session, layers)) as (base, _), open_page(browser) as page:
        page.route(
            "**/api/traces", lambda route: route.continue_(post_data=_without_story(route.request.post_data_json))
        )
        page.goto(f"{base}#step=0&colour=token&view=dynamics&text={text(n_words, 0).replace(' ', '+')}")
        page.wait_for_selector("canvas[data-ready=yes]")
        page.wait_for_timeout(1500)  # the page has finished loading
        clock = CpuClock(page)
        page.evaluate(COUNT_FRAMES)
        before = clock.seconds("ScriptDuration")
        page.locator("button.play").click()
        page.wait_for_selector(f"input.steps[aria-valuetext='L{layers - 1} mlp']")
        page.wait_for_timeout(700)
        seconds, frames = clock.seconds("ScriptDuration") - before, page.evaluate("frames_seen")
        tokens = page.locator("section.strip li").count()
    label = f"script per frame, {tokens} tokens × {2 * layers} half-layers"
    return {"what": label, "frames": frames, "ms": 1000 * seconds / frames, "bar": 20}


def _without_story(body: dict[str, Any]) -> str:
    return json.dumps(body | {"lines": []})


def browser_rows(base: str, rounds: int, smallest: bool) -> Iterator[dict[str, object]]:
    """The measurements in a browser. They are skipped with --smallest, because the tests of the page open a browser anyway."""
    browser = "not with --smallest" if smallest else find_browser()
    if isinstance(browser, str):
        yield {"what": "in a browser", "skipped": browser}
        return
    yield first_paint(browser, base)
    yield from visit_rows(browser, base, rounds)
    yield tour_row(browser, base)
    yield animation_frames(browser, layers=12, n_words=1020)


async def run_client(base: str, seed: int, until: float, statuses: Counter) -> None:
    """Post texts one after the other until `until`. Every response must be about the posted text."""
    async with httpx2.AsyncClient(base_url=base, timeout=60) as client:
        for number in itertools.count():
            if time.monotonic() > until:
                return
            posted_text = text(12, 1000 * seed + number % 40)
            answer = await client.post("api/traces", json={"text": posted_text})
            statuses[answer.status_code] += 1
            if answer.status_code == 429:
                await asyncio.sleep(0.2)
                continue
            trace_path, job = f"api/traces/{answer.json()['id']}", answer.json()["job"]
            for end in ("", "/points", f"/weights/{number % 6}/{seed % 4}"):
                answer = await client.get(trace_path + end)
                statuses[answer.status_code] += 1
                statuses["mixed"] += not end and answer.json().get("text") != posted_text
            await client.delete(f"api/jobs/{job}")


def load(base: str, clients: int, seconds: float) -> dict[str, object]:
    async def run_clients(until: float, statuses: Counter) -> None:
        await asyncio.gather(*(run_client(base, seed, until, statuses) for seed in range(clients)))

    asyncio.run(run_clients(time.monotonic() + seconds / 4, Counter()))  # fills the cache and warms up the pools
    before, statuses = resident_bytes(), Counter()
    asyncio.run(run_clients(time.monotonic() + seconds, statuses))
    after, n_responses = resident_bytes(), sum(count for status, count in statuses.items() if status != "mixed")
    failures = {str(status): count for status, count in statuses.items() if status not in (200, "mixed")}
    return {
        "what": f"{clients} clients for {seconds:g} s",
        "requests per second": n_responses / seconds,
        "not 200": failures,
        "mixed": statuses["mixed"],
        "memory": after / before,
    }


def resident_bytes() -> int:
    """Resident memory of this process in bytes, after freed memory was returned to the system."""
    import ctypes
    import gc

    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmRSS"))


def main(argv: Sequence[str] | None = None) -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=60.0)
    options = parser.parse_args(argv)
    rounds = 1 if options.smallest else 5 if options.quick else 15
    clients, seconds = (2, 0.1) if options.smallest else (options.clients, 10.0 if options.quick else options.seconds)
    rows: list[dict[str, object]] = []

    def add(row: dict[str, object]) -> None:
        values = {name: f"{value:.3g}" if isinstance(value, float) else value for name, value in row.items()}
        print("  ".join(f"{name}: {value}" for name, value in values.items()), flush=True)
        rows.append(row)

    with serving() as (base, _), httpx2.Client(base_url=base, timeout=60) as client:
        for row in [
            first_answers(client),
            *edit_times(client, rounds),
            payload(client, 40 if options.smallest else 900),
        ]:
            add(row)
        for row in browser_rows(base, 3 if options.quick else 7, options.smallest):
            add(row)
        add(load(base, clients, seconds))
    store_rows("studio", rows, options.smallest)


if __name__ == "__main__":
    main()
