"""The studio's server, on loopback: from a typed text to points, an edit of one head, payloads, and many clients at once.

    python benchmarks/studio.py [--clients 50] [--seconds 60]

The server runs in this process (uvicorn, a thread), its clients beside it, so that both share the cores: what is printed is an
upper bound. Bars: first answers < 1 s; a text of 64 tokens to its points < 2 s; an edit of one head < 1.5 s; what a page needs to
draw 1024 tokens < 4 MB; under load no error, no client with another's answer, memory back within 10 %.

Where Playwright, Chromium and the built page are: the stored example stands on the page < 1 s after it was asked for, and
a frame of 1024 tokens that move through 24 half-layers takes <= 20 ms of script. Script is what Chromium counts as such (the whole
page's, every frame); WebGL is drawn by software there, in another process, and not counted.
"""

import asyncio
import itertools
import json
import os
import random
import shutil
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
from timing import arguments, keep

import rheoscope as rs
from rheoscope.models.config import Config
from rheoscope.models.transformer import Transformer
from rheoscope.studio.model_sources import ModelSources
from rheoscope.studio.safety import AccessRules
from rheoscope.studio.server import create_app
from rheoscope.studio.session import Limits, Session
from rheoscope.studio.startup import DEFAULT_OPTIONS, bind_socket, page_address, start_session
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


def text(words: int, at: int) -> str:
    """A text of its own for every number."""
    draw = random.Random(at)
    return f"{at}: " + " ".join(draw.choice(WORDS) for _ in range(words))


def default() -> Session:
    return start_session(DEFAULT_OPTIONS, Limits(n_controls=0, max_cache_bytes=50_000_000))


@contextmanager
def serving(begin: Callable[[], Session] = default) -> Iterator[tuple[str, Any]]:
    """A server with a model, the default one unless another is given, and what it holds."""
    session, listening = begin(), bind_socket("127.0.0.1", 0)
    page = PAGE_FOLDER if (PAGE_FOLDER / "index.html").exists() else None
    app = create_app(
        session, AccessRules(), page, load_example(PAGE_FOLDER / EXAMPLE_FOLDER) if begin is default else None
    )
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="off"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        yield page_address("127.0.0.1", listening.getsockname()[1], None), session
    finally:
        server.should_exit = True
        thread.join()
        session.close()
        listening.close()


def milliseconds(run: Any) -> float:
    start = time.perf_counter()
    run()
    return 1000 * (time.perf_counter() - start)


def first_answers(client: httpx2.Client) -> dict[str, object]:
    """What a page asks before it paints; without a stored example (make studio writes one) the state alone."""
    example = client.get("api/state").json()["example"]
    own = [] if example is None else [f"api/traces/{example}{end}" for end in ("", "/points", "/verdicts")]
    paths = ["api/state", "api/catalogue", *own]
    took = milliseconds(lambda: [client.get(path).raise_for_status() for path in paths])
    return {"what": "first answers", "stored example": example is not None, "ms": took, "bar": 1000}


def to_points(client: httpx2.Client, said: str, edits: Sequence[dict[str, Any]] = ()) -> bytes:
    """A text posted, its points fetched, its questions let go."""
    posted = client.post("api/traces", json={"text": said, "edits": list(edits)}).raise_for_status().json()
    points = client.get(f"api/traces/{posted['id']}/points").raise_for_status().content
    client.delete(f"api/jobs/{posted['job']}")
    return points


def typed(client: httpx2.Client, rounds: int) -> list[dict[str, object]]:
    """Medians over texts that the server has not seen."""
    edit = {"layer": 3, "head": 1, "part": "M", "operation": "symmetric"}
    client.post("api/traces", json={"text": "a", "questions": []})  # the model is open
    plain = [milliseconds(lambda at=at: to_points(client, text(50, at))) for at in range(rounds)]
    edited = [milliseconds(lambda at=at: to_points(client, text(50, at), [edit])) for at in range(rounds)]
    return [
        {"what": "64 tokens to points", "ms": statistics.median(plain), "bar": 2000},
        {"what": "an edit of one head", "ms": statistics.median(edited), "bar": 1500},
    ]


def payload(client: httpx2.Client, words: int) -> dict[str, object]:
    """What a page needs to draw a long text and one head of it."""
    posted = client.post("api/traces", json={"text": text(words, 0), "questions": []}).raise_for_status().json()
    own = f"api/traces/{posted['id']}"
    size = sum(len(client.get(f"{own}{end}").raise_for_status().content) for end in ("", "/points", "/weights/0/0"))
    tokens = len(client.get(own).json()["tokens"])
    return {"what": f"payload of {tokens} tokens", "bytes": size, "bar": 4_000_000}


# In a browser

SOFTWARE = ("--use-gl=angle", "--use-angle=swiftshader", "--enable-unsafe-swiftshader", "--no-sandbox")
"""WebGL without a graphics card."""
PLAIN = ("--disable-gpu", "--no-sandbox")
"""No WebGL: the page draws its cloud on a plain canvas, and nothing waits for a renderer that no user has."""
COUNT = "() => { window.frames_seen = 0; const count = () => { window.frames_seen++; requestAnimationFrame(count) }; count() }"


def browser_of() -> tuple[Any, str] | str:
    """Playwright and where Chromium is, or what is missing."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        return "no Playwright here"
    names = ("chromium", "chromium-browser", "google-chrome")
    found = os.environ.get("RHEOSCOPE_CHROMIUM") or next(filter(None, map(shutil.which, names)), None)
    if found is None:
        return "no Chromium here"
    return (
        (sync_playwright, found) if (PAGE_FOLDER / "index.html").exists() else "the page is not built; type make studio"
    )


def deep(layers: int) -> Session:
    """An untrained model of so many layers, narrow: the page draws three directions of it, however many there are."""

    def load(source: str | None, **given: Any) -> Any:
        torch.manual_seed(0)
        shipped = rs.load()
        size = Config(shipped.view.embed.shape[0], width=32, depth=layers, heads=4, hidden=64, context=1024)
        return rs.load(Transformer(size), tokenizer=shipped.tokenizer)

    session = Session(load, ModelSources(), Limits(n_controls=0))
    session.open_model("default")
    return session


@contextmanager
def looking(found: tuple[Any, str], flags: Sequence[str]) -> Iterator[Any]:
    start, chromium = found
    with start() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=list(flags))
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        page.set_default_timeout(60_000)
        try:
            yield page
        finally:
            browser.close()


def first_paint(found: tuple[Any, str], base: str) -> dict[str, object]:
    """From the request of the page to the first thing that it painted, and to the points of the stored example."""
    of_paint = "performance.getEntriesByType('paint').map((one) => one.startTime)"
    of_points = "performance.getEntriesByType('resource').filter((one) => /points/.test(one.name)).map((one) => one.responseEnd)"
    with looking(found, PLAIN) as page:
        page.goto(base)
        page.wait_for_selector("canvas[data-ready=yes]")
        paint, points = page.evaluate(of_paint), page.evaluate(of_points)
    return {"what": "the example on the page", "points ms": points[0], "ms": paint[0], "bar": 1000}


def scrubbed(found: tuple[Any, str], layers: int, words: int) -> dict[str, object]:
    """Milliseconds of script for each frame while a long text plays through all its half-layers."""
    with serving(partial(deep, layers)) as (base, _), looking(found, SOFTWARE) as page:
        page.route("**/api/traces", lambda route: route.continue_(post_data=_unasked(route.request.post_data_json)))
        page.goto(f"{base}#step=0&colour=token&view=dynamics&text={text(words, 0).replace(' ', '+')}")
        page.wait_for_selector("canvas[data-ready=yes]")
        page.wait_for_timeout(1500)  # what opens the page is over
        counted = page.context.new_cdp_session(page)
        counted.send("Performance.enable", {"timeDomain": "threadTicks"})  # others may use the cores meanwhile
        page.evaluate(COUNT)
        before = _script(counted)
        page.locator("button.play").click()
        page.wait_for_selector(f"input.steps[aria-valuetext=L{layers - 1}]")
        page.wait_for_timeout(700)
        seconds, frames = _script(counted) - before, page.evaluate("frames_seen")
        tokens = page.locator("section.strip li").count()
    what = f"script a frame, {tokens} tokens × {2 * layers} half-layers"
    return {"what": what, "frames": frames, "ms": 1000 * seconds / frames, "bar": 20}


def _unasked(body: dict[str, Any]) -> str:
    return json.dumps(body | {"questions": []})


def _script(counted: Any) -> float:
    """Seconds of script so far, of the time that the page itself ran."""
    found = counted.send("Performance.getMetrics")["metrics"]
    return next(one["value"] for one in found if one["name"] == "ScriptDuration")


def in_a_browser(base: str, smallest: bool) -> list[dict[str, object]]:
    """What only a browser can tell; a test of the page opens one anyway, so the smallest form does not."""
    found = "not in the smallest form" if smallest else browser_of()
    if isinstance(found, str):
        return [{"what": "in a browser", "skipped": found}]
    return [first_paint(found, base), scrubbed(found, layers=12, words=1020)]


async def one_client(base: str, at: int, until: float, seen: Counter) -> None:
    """Texts of its own, one after the other; every answer must be about the text that was posted."""
    async with httpx2.AsyncClient(base_url=base, timeout=60) as client:
        for number in itertools.count():
            if time.monotonic() > until:
                return
            said = text(12, 1000 * at + number % 40)
            answer = await client.post("api/traces", json={"text": said})
            seen[answer.status_code] += 1
            if answer.status_code == 429:
                await asyncio.sleep(0.2)
                continue
            own, job = f"api/traces/{answer.json()['id']}", answer.json()["job"]
            for end in ("", "/points", f"/weights/{number % 6}/{at % 4}"):
                answer = await client.get(own + end)
                seen[answer.status_code] += 1
                seen["mixed"] += not end and answer.json().get("text") != said
            await client.delete(f"api/jobs/{job}")


def load(base: str, clients: int, seconds: float) -> dict[str, object]:
    async def all_of_them(until: float, seen: Counter) -> None:
        await asyncio.gather(*(one_client(base, at, until, seen) for at in range(clients)))

    asyncio.run(all_of_them(time.monotonic() + seconds / 4, Counter()))  # what is kept is full, pools are warm
    before, seen = resident(), Counter()
    asyncio.run(all_of_them(time.monotonic() + seconds, seen))
    after, answered = resident(), sum(many for status, many in seen.items() if status != "mixed")
    bad = {str(status): many for status, many in seen.items() if status not in (200, "mixed")}
    return {
        "what": f"{clients} clients for {seconds:g} s",
        "requests per second": answered / seconds,
        "not 200": bad,
        "mixed": seen["mixed"],
        "memory": after / before,
    }


def resident() -> int:
    """Bytes that this process holds, what was freed given back."""
    import ctypes
    import gc

    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmRSS"))


def main(words: Sequence[str] | None = None) -> None:
    parser = arguments(__doc__)
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=60.0)
    asked = parser.parse_args(words)
    rounds = 1 if asked.smallest else 5 if asked.quick else 15
    clients, seconds = (2, 0.1) if asked.smallest else (asked.clients, 10.0 if asked.quick else asked.seconds)
    with serving() as (base, _), httpx2.Client(base_url=base, timeout=60) as client:
        rows = [first_answers(client), *typed(client, rounds), payload(client, 40 if asked.smallest else 900)]
        rows += in_a_browser(base, asked.smallest)
        rows.append(load(base, clients, seconds))
    for row in rows:
        told = {name: f"{value:.3g}" if isinstance(value, float) else value for name, value in row.items()}
        print("  ".join(f"{name}: {value}" for name, value in told.items()))
    keep("studio", rows, asked.smallest)


if __name__ == "__main__":
    main()
