"""A visitor of the studio's page in Chromium: opens the example, enters a text, edits a head, hovers and takes the tour.

Times are those of the page: from the key or the navigation until the frame in which the result is on the screen. CPU times are those
of the page's main thread, which other processes do not lengthen. The first points are timed until they are drawn.
"""

import os
import random
import shutil
import statistics
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rheoscope.studio.stored_example import PAGE_FOLDER

SIZES = ((1440, 900), (1280, 720), (390, 844))
FLAGS = ("--no-sandbox",)
"""Flags of Chromium on a machine without a graphics card. The page finds that the processor would draw WebGL and uses a 2D canvas."""
BARS = {"first points": 1000, "own text to points": 1500, "edit to new bars": 1000, "hover": 50}
"""Milliseconds that each action of the visitor may take."""
WORDS = ("king", "ship", "river", "sea", "gold")
N_TOUR_STEPS = 5

# Conditions on the page, as JavaScript

HAS_POINTS = "document.querySelector('canvas[data-ready=yes]') && !document.querySelector('.results.old')"
SHOWS_TEXT = (
    "[...document.querySelectorAll('section.strip li button')].map((e) => e.textContent).join('').endsWith({text!r})"
)
HAS_NEW_BARS = (
    "document.querySelector('section[aria-labelledby=next-token] .bar i') && !document.querySelector('.results.old')"
)
WAIT = """(start) => new Promise((resolve) => {{
    const check = () => ({condition}) ? resolve(performance.now() - start) : requestAnimationFrame(check)
    check()
}})"""
RECORD_HOVERS = """() => {
    window.hoverTimes = []
    addEventListener('pointermove', (event) => requestAnimationFrame(() => setTimeout(() =>
        window.hoverTimes.push(performance.now() - event.timeStamp))))
}"""
FITS = """() => [...document.querySelectorAll('.cloud, input.steps')].every((element) => {
    const box = element.getBoundingClientRect()
    return scrollY === 0 && box.top >= 0 && box.bottom <= innerHeight && box.right <= innerWidth
})"""


def find_browser() -> tuple[Any, str] | str:
    """Playwright and the path of Chromium, or the reason why there is none."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        return "Playwright is not installed"
    names = ("chromium", "chromium-browser", "google-chrome")
    chromium = os.environ.get("RHEOSCOPE_CHROMIUM") or next(filter(None, map(shutil.which, names)), None)
    if chromium is None:
        return "Chromium is not installed"
    has_page = (PAGE_FOLDER / "index.html").exists()
    return (sync_playwright, chromium) if has_page else "the page is not built; type make studio"


@contextmanager
def open_page(browser: tuple[Any, str], size: tuple[int, int] = SIZES[0], **options: Any) -> Iterator[Any]:
    start, chromium = browser
    with start() as driver:
        process = driver.chromium.launch(executable_path=chromium, args=list(FLAGS))
        page = process.new_page(viewport={"width": size[0], "height": size[1]}, **options)
        page.set_default_timeout(60_000)
        try:
            yield page
        finally:
            process.close()


class CpuClock:
    """CPU seconds of the main thread of a page."""

    def __init__(self, page: Any) -> None:
        self.metrics_session = page.context.new_cdp_session(page)
        self.metrics_session.send("Performance.enable", {"timeDomain": "threadTicks"})

    def seconds(self, name: str = "TaskDuration") -> float:
        """So far: all tasks, or with `ScriptDuration` only script."""
        metrics = self.metrics_session.send("Performance.getMetrics")["metrics"]
        return next(metric["value"] for metric in metrics if metric["name"] == name)


def wait_for(page: Any, condition: str, start: float) -> float:
    """Wait for a condition and return the milliseconds since `start` in the time of the page."""
    return float(page.evaluate(WAIT.format(condition=condition), start))


def wait_until_idle(page: Any) -> None:
    """Wait until the analyses of the text have finished."""
    page.locator(".progress.working").wait_for(state="detached", timeout=300_000)


def visit(browser: tuple[Any, str], base: str, size: tuple[int, int], seed: int) -> dict[str, tuple[float, float]]:
    """One visit: action → (milliseconds, milliseconds of CPU on the main thread of the page)."""
    result: dict[str, tuple[float, float]] = {}
    with open_page(browser, size, locale="en-GB") as page:
        clock = CpuClock(page)

        def record(name: str, elapsed: float, cpu_before: float, actions: int = 1) -> None:
            result[name] = elapsed, 1000 * (clock.seconds() - cpu_before) / actions

        page.goto(base, wait_until="commit")
        record("first points", wait_for(page, HAS_POINTS, 0), 0)
        result["cloud and scrubber fit"] = float(page.evaluate(FITS)), 0
        wait_until_idle(page)

        own_text = f"The old king went down to the great river in his {random.Random(seed).choice(WORDS)} {seed}"
        page.keyboard.press("/")
        page.locator("textarea").fill(own_text)
        start, cpu = page.evaluate("performance.now()"), clock.seconds()
        page.keyboard.press("Enter")
        shown_text = own_text.replace(" ", "·").removeprefix("·")
        condition = f"{SHOWS_TEXT.format(text=shown_text)} && {HAS_POINTS}"
        record("own text to points", wait_for(page, condition, start), cpu)

        page.keyboard.press("ArrowDown")  # selects the first head
        wait_until_idle(page)
        start, cpu = page.evaluate("performance.now()"), clock.seconds()
        page.keyboard.press("x")
        record("edit to new bars", wait_for(page, HAS_NEW_BARS, start), cpu)

        wait_until_idle(page)
        page.wait_for_timeout(500)  # the bars have moved
        page.evaluate(RECORD_HOVERS)
        cpu, tokens = clock.seconds(), page.locator("section.strip li button")
        boxes = [tokens.nth(position).bounding_box() for position in range(1, 9)]
        for box in boxes:
            page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
            page.wait_for_timeout(60)
        record("hover", statistics.median(page.evaluate("hoverTimes")), cpu, len(boxes))
    return result


def visit_rows(browser: tuple[Any, str], base: str, rounds: int) -> Iterator[dict[str, object]]:
    """Per size of the window: the median of every action over some visits, with its quartiles."""
    for size in SIZES:
        visits = [visit(browser, base, size, 1000 * size[0] + number) for number in range(rounds)]
        label = f"{size[0]}×{size[1]}"
        n_fits = sum(bool(result["cloud and scrubber fit"][0]) for result in visits)
        yield {"what": f"{label}: cloud and scrubber fit", "visits": n_fits, "bar": rounds}
        for name, bar in BARS.items():
            elapsed, cpu = zip(*(result[name] for result in visits), strict=True)
            yield {"what": f"{label}: {name}", **spread(elapsed), "CPU ms": statistics.median(cpu), "bar": bar}


def spread(values: Sequence[float]) -> dict[str, object]:
    """The median and the quartiles of measurements in milliseconds."""
    low, middle, high = statistics.quantiles(values, n=4) if len(values) > 1 else [values[0]] * 3
    return {"ms": middle, "quartiles": f"{low:.0f}–{high:.0f}", "visits": len(values)}


def tour_row(browser: tuple[Any, str], base: str) -> dict[str, object]:
    """Steps of the tour that the tab and enter keys reach, the last of which ends with an edit."""
    with open_page(browser, locale="en-GB") as page:
        page.goto(base)
        page.wait_for_selector("canvas[data-ready=yes]")
        press_tab_until(page, "Take the tour")
        page.keyboard.press("Enter")
        for number in range(1, N_TOUR_STEPS):
            page.locator(f"section.tour a.now:text-is('{number}')").wait_for()
            press_tab_until(page, "Next")
            page.keyboard.press("Enter")
        page.locator("section.tour .go:has-text('Silence')").wait_for()
        press_tab_until(page, "Silence")
        page.keyboard.press("Enter")
        page.wait_for_selector("section.tour .go:text-is('Done')")
        reached = page.locator("section.tour a.now").inner_text()
    return {"what": "steps of the tour by keyboard, with the edit", "steps": int(reached), "bar": N_TOUR_STEPS}


def press_tab_until(page: Any, name: str) -> None:
    """Move the focus with the tab key to the control whose text begins with `name`."""
    for _ in range(40):
        if page.evaluate("document.activeElement.textContent.trim()").startswith(name):
            return
        page.keyboard.press("Tab")
    raise RuntimeError(f"40 tabs do not reach {name!r}")
