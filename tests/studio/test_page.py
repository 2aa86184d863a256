"""The page in a real browser: load, type, scrub, pick a head, operate, reload from the link, switch language, open an export."""

import base64
import json
import os
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

import rheoscope as rs
from rheoscope.report.draw_result import picture_of
from rheoscope.studio import export, notebook
from rheoscope.studio.corpus import LiveCorpusRun
from rheoscope.studio.model_sources import ModelSources
from rheoscope.studio.safety import AccessRules
from rheoscope.studio.server import create_app
from rheoscope.studio.session import Limits, Session
from rheoscope.studio.stored_example import PAGE_FOLDER
from tests.studio.cases import TEXT, everything_is_imported, loading, ran, small

AXE = Path(__file__).parents[2] / "frontend" / "node_modules" / "axe-core" / "axe.min.js"
CHROMIUM = os.environ.get("RHEOSCOPE_CHROMIUM") or next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
SOFTWARE = ("--use-gl=angle", "--use-angle=swiftshader", "--enable-unsafe-swiftshader", "--no-sandbox")
"""WebGL without a graphics card."""
pytestmark = [
    pytest.mark.skipif(not CHROMIUM, reason="no chromium here; the page was not looked at"),
    pytest.mark.skipif(not (PAGE_FOLDER / "index.html").exists(), reason="the page is not built; type make studio"),
]


@contextmanager
def serving(run: LiveCorpusRun | None = None) -> Iterator[tuple[Session, str]]:
    """The studio on a small model, on a port of its own, gone at the end."""
    uvicorn = pytest.importorskip("uvicorn")
    everything_is_imported()
    session = Session(loading, ModelSources(), Limits(n_controls=0, max_tokens=100))
    server = uvicorn.Server(
        uvicorn.Config(create_app(session, AccessRules(), PAGE_FOLDER, corpus_run=run), port=0, log_level="error")
    )
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            time.sleep(0.01)
        yield session, f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/"
    finally:
        server.should_exit = True
        thread.join(10)
        session.close()


@pytest.fixture(scope="module")
def studio() -> Iterator[tuple[Session, str]]:
    with serving() as found:
        yield found


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="no playwright here; the page was not looked at")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=list(SOFTWARE))
        yield browser
        browser.close()


def ask_less(route: Any) -> None:
    """One of the seven questions is enough here: the server computes in the process that waits for the page."""
    if route.request.method == "POST":
        route.continue_(post_data=json.dumps({"questions": ["prediction"]} | route.request.post_data_json))
    else:
        route.continue_()


@contextmanager
def looking(browser: Any, **more: Any) -> Iterator[tuple[Any, list[str]]]:
    """A page, and every error that it told."""
    page = browser.new_page(viewport={"width": 800, "height": 600}, reduced_motion="reduce", **more)
    page.set_default_timeout(15_000)
    page.route("**/api/traces", ask_less)
    errors: list[str] = []
    page.on("console", lambda told: errors.append(told.text) if told.type == "error" else None)
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("response", lambda answer: errors.append(answer.url) if answer.status >= 400 else None)
    yield page, errors
    page.close()


def arrived(page: Any) -> None:
    """The cloud is there."""
    page.wait_for_selector("canvas[data-ready=yes]")


def until(page: Any, holds: Callable[[], bool]) -> None:
    """Wait for it; no script of the page is asked, as its policy forbids to evaluate any."""
    for _ in range(600):
        if holds():
            return
        page.wait_for_timeout(25)
    raise AssertionError("it did not come in 15 s")


def linked(page: Any, words: str) -> None:
    """The address says so; the browser tells of it on another way than of a key, and may do so later."""
    until(page, lambda: words in page.url)


def tokens(page: Any) -> list[str]:
    return [text.replace("·", " ") for text in page.locator("section.strip li button").all_inner_texts()]


def test_a_visit(studio: tuple[Session, str], browser: Any) -> None:
    with looking(browser) as (page, errors):
        page.goto(f"{studio[1]}#field=scores.centred&colour=token&text=One+day+the+king+took+the+gold+from+the+bank")
        arrived(page)
        assert page.locator("section[data-tour=questions] li").count() == 7

        page.keyboard.press("/")
        page.locator("textarea").fill(TEXT)
        page.keyboard.press("Enter")
        until(page, lambda: "".join(tokens(page)).endswith(TEXT))
        linked(page, "text=")

        page.keyboard.press("ArrowRight")
        page.keyboard.press("ArrowRight")
        linked(page, "step=2")
        assert page.locator("input.steps").input_value() == "2"

        page.locator("section.strip li button").nth(3).click()
        linked(page, "token=3")

        page.wait_for_selector("canvas.heads")
        heads = page.locator("canvas.heads")
        heads.scroll_into_view_if_needed()
        heads.click(position={"x": 50, "y": 30})
        linked(page, "layer=0")
        linked(page, "head=0")

        page.locator("form.operate select").first.select_option("ablate")
        page.locator("form.operate button[type=submit]").click()
        page.wait_for_selector(".chip")
        page.wait_for_selector(".moved")  # the prediction before and after
        linked(page, "edits=0.0.both.ablate")

        page.locator("figure.images").get_by_role("button", name="difference").click()
        page.get_by_text("Rings mark the tokens before the edits").wait_for()
        page.locator("input[data-show=moves]").check()
        page.get_by_text("change of the update by").wait_for()
        linked(page, "side=difference")

        page.reload()
        arrived(page)
        page.wait_for_selector(".moved")
        assert page.locator(".chip").count() == 1
        assert "".join(tokens(page)).endswith(TEXT)
        assert page.locator("input.steps").input_value() == "2"

        page.go_back()
        page.wait_for_selector(".chip", state="detached")
        page.go_forward()
        page.wait_for_selector(".chip")

        page.locator("button[lang=zh-Hans]").click()
        until(page, lambda: page.locator("#questions").inner_text() == "七个问题")
        assert page.evaluate("document.documentElement.lang") == "zh-Hans"
        linked(page, "language=zh")
        assert errors == []


def test_a_short_text_is_no_error(studio: tuple[Session, str], browser: Any) -> None:
    """What it is too short for says so in its place."""
    with looking(browser) as (page, errors):
        page.goto(f"{studio[1]}#view=clusters&text=The")
        arrived(page)
        page.get_by_text("use a longer text").first.wait_for()
        assert errors == []


def test_a_long_text_is_read_a_window_at_a_time(studio: tuple[Session, str], browser: Any) -> None:
    long = " ".join(f"{TEXT} {k}" for k in range(12))  # this server takes 100 tokens at a time
    with looking(browser) as (page, errors):
        page.goto(f"{studio[1]}#view=dynamics&text={quote(long)}")
        arrived(page)
        told = page.locator(".window")
        assert "tokens 1–99 of " in told.inner_text()
        first = tokens(page)
        page.get_by_role("button", name="next tokens").click()
        until(page, lambda: tokens(page) != first)
        linked(page, "window=2")
        page.go_back()
        until(page, lambda: tokens(page) == first)
        assert errors == []


def test_everything_around_the_points(studio: tuple[Session, str], browser: Any) -> None:
    """What a head pushes, the coupling, other axes, what a head sees, the graph of heads, clusters as they pass into each other."""
    with looking(browser, accept_downloads=True) as (page, errors):
        page.goto(f"{studio[1]}#field=scores.centred&colour=token&layer=1&head=2&token=3&text={TEXT}")
        arrived(page)
        page.wait_for_selector(".pairs li")
        page.wait_for_selector(".lists li")
        count = len(tokens(page))
        for place, lines in (
            ("figure.images", 4 * count),
            ("figure:has(canvas.map)", count**2),
            ("section.cloud .tools", 7 * count),
        ):
            with page.expect_download() as saved:
                page.locator(place).first.locator("button", has_text="CSV").click()
            written = Path(saved.value.path()).read_text(encoding="utf-8").splitlines()
            assert f"# text: {TEXT}" in written
            assert sum(not line.startswith("#") for line in written) == lines + 1, place
        for name in ("moves", "coupling"):
            page.locator(f"input[data-show={name}]").check()
            page.wait_for_selector(f"[data-legend={name}]")
        linked(page, "show=trails%2Carcs%2Cmoves%2Ccoupling")

        page.locator("select.axes").select_option("+tokens")
        page.locator("dialog input").fill("#5, #9")
        page.keyboard.press("Enter")
        until(page, lambda: "These 2 axes" in page.locator(".foot").inner_text())
        page.locator("select.axes").select_option("+text")
        page.locator("dialog textarea").fill("One day the king took the gold")
        page.locator("dialog .go").click()
        until(page, lambda: "from another text" in page.locator(".foot").inner_text())
        page.go_back()
        until(page, lambda: "These 2 axes" in page.locator(".foot").inner_text())

        page.locator("#tab-clusters").click()
        page.wait_for_selector(".alluvial rect")
        with page.expect_download() as saved:
            page.locator(".alluvial button", has_text="SVG").click()
        assert saved.value.suggested_filename == "rheoscope-how-clusters-merge-and-split.svg"
        page.locator("#tab-composition").click()
        page.locator("p.ask button").click()
        page.locator(".composition circle").nth(9).click()
        linked(page, "layer=2&head=1")
        assert errors == []


def english(page: Any, where: str) -> list[str]:
    """Sentences that are still in English."""
    return re.findall(r"(?:[A-Za-z]{2,} ){2,}[A-Za-z]{2,}", page.locator(where).inner_text())


def test_what_the_server_says_is_told_in_the_language_of_the_page(studio: tuple[Session, str], browser: Any) -> None:
    with looking(browser) as (page, errors):
        for view in ("all:trajectory", "heads"):
            page.goto(f"{studio[1]}#language=zh&field=scores.centred&view={view}")
            arrived(page)
            page.locator("#views figure, #views canvas").first.wait_for()
            until(page, lambda: page.locator("section[data-tour=questions] .answer.waiting").count() < 7)
            until(page, lambda: english(page, "section[data-tour=questions]") == [])

        page.goto(f"{studio[1]}#language=zh&view=all:trajectory")
        title = page.locator("#views h3 button").first
        title.focus()  # a definition is one key away
        page.locator(f"[id='{title.get_attribute('aria-describedby')}']").wait_for(state="visible")
        assert errors == []


def test_two_models_side_by_side(studio: tuple[Session, str], browser: Any) -> None:
    with looking(browser) as (page, errors):
        page.goto(f"{studio[1]}#field=scores.centred&colour=token&text=One+day+the+king+took+the+gold+from+the+bank")
        arrived(page)
        page.locator("header select").nth(1).select_option("untrained")
        page.wait_for_selector("#panel table >> nth=1")
        linked(page, "beside=untrained")
        assert errors == []


def at_length(subject: Any, name: str, settings: Any, nulls: bool, progress: Any) -> Any:
    """Long enough on any machine, and it hears that nobody waits any more."""
    for done in range(1200):
        progress(done, 1200)
        time.sleep(0.05)


def test_a_long_run_is_cancelled(studio: tuple[Session, str], browser: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with looking(browser) as (page, errors):
        page.goto(f"{studio[1]}#view=dynamics&text=The+keys")
        arrived(page)
        monkeypatch.setattr("rheoscope.studio.session.run_analysis", at_length)
        page.keyboard.press("/")
        page.locator("textarea").fill(f"{TEXT} once more")
        page.keyboard.press("Enter")
        page.locator(".act button", has_text="cancel").click()
        assert page.locator("[role=alert]").inner_text() == "Cancelled"
        assert errors == []


def test_a_link_under_an_edit_shows_what_was_before(
    studio: tuple[Session, str], browser: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At once, though the answers about the edited text take long."""
    monkeypatch.setattr("rheoscope.studio.session.run_analysis", at_length)
    with looking(browser) as (page, errors):
        page.goto(f"{studio[1]}#layer=0&head=1&edits=0.1.M.symmetric&text=One+day+the+king+took+it")
        page.get_by_text(re.compile("symmetry .* → 1")).wait_for()
        page.locator(".act button", has_text="cancel").click()
        assert errors == []


def test_text_stays_text(studio: tuple[Session, str], browser: Any) -> None:
    """Marks of HTML, of direction and of nothing at all are shown, and run nothing."""
    wild = "<img src=x onerror=alert(1)> \u202eabc\u0000 <script>1</script>"
    with looking(browser) as (page, errors):
        page.goto(f"{studio[1]}#field=scores.centred&colour=token&text=One+day+the+king+took+the+gold+from+the+bank")
        arrived(page)
        page.keyboard.press("/")
        page.locator("textarea").fill(wild)
        page.keyboard.press("Enter")
        until(page, lambda: "onerror" in "".join(tokens(page)))
        assert page.locator("main img, main script").count() == 0
        assert errors == []


def test_nobody_is_left_out(studio: tuple[Session, str], browser: Any) -> None:
    """No serious fault of accessibility, on a light page and on a dark one."""
    if not AXE.exists():
        pytest.skip("axe-core is not installed; type make studio")
    with looking(browser, bypass_csp=True) as (page, _):
        page.goto(
            f"{studio[1]}#field=scores.centred&colour=token&text=One+day+the+king+took+the+gold+from+the+bank&layer=0&head=1&token=1"
        )
        arrived(page)
        page.wait_for_selector("canvas.heads")
        page.add_script_tag(path=str(AXE))
        for theme in ("light", "dark"):
            assert page.evaluate("document.documentElement.dataset.theme") == theme
            found = page.evaluate("axe.run().then((told) => told.violations)")
            grave = [one for one in found if one["impact"] in ("serious", "critical")]
            assert [(one["id"], [node["target"] for node in one["nodes"]][:3]) for one in grave] == []
            page.locator("header .theme").click()


def test_a_corpus_from_its_map_to_one_text(browser: Any, tmp_path: Path) -> None:
    """A head on the map, its distribution, an example, and that text above with the head chosen; nobody is left out."""
    pytest.importorskip("duckdb")
    run = ran(tmp_path / "run", [TEXT, TEXT[4:], TEXT[9:]])
    with serving(run) as (_, base), looking(browser, bypass_csp=True) as (page, errors):
        page.goto(f"{base}#view=corpus&field=head_statistics.first_token_weight")
        page.wait_for_selector("canvas.heads")
        page.locator("canvas.heads").click(position={"x": 50, "y": 30})
        linked(page, "layer=0&head=0")
        page.get_by_text("Over the corpus").wait_for()
        if AXE.exists():
            page.add_script_tag(path=str(AXE))
            found = page.evaluate("axe.run('#views').then((told) => told.violations)")
            assert [one["id"] for one in found if one["impact"] in ("serious", "critical")] == []
        example = page.locator("button.example").first
        words = example.locator(".text").inner_text()
        example.click()
        until(page, lambda: "".join(tokens(page)).endswith(words))
        linked(page, "field=head_statistics.first_token_weight&layer=0&head=0")
        page.wait_for_selector("#tab-heads[aria-selected=true]")
        page.go_back()
        page.wait_for_selector("button.example")
        assert errors == []


def test_an_export_opens_from_disk(studio: tuple[Session, str], browser: Any, tmp_path: Path) -> None:
    session, _ = studio
    opened = session.open_model("default")
    entry, _ = session.get_or_trace(opened, opened.job.result.result(60), TEXT, ())
    export.write_export(tmp_path / "page", session, entry, PAGE_FOLDER)
    with looking(browser) as (page, errors):
        page.goto((tmp_path / "page" / "index.html").as_uri())
        arrived(page)
        assert "".join(tokens(page)).endswith(TEXT)
        page.keyboard.press("ArrowRight")
        linked(page, "step=1")
        page.keyboard.press("ArrowDown")
        page.wait_for_selector("canvas.map")
        page.locator("button[lang=zh-Hans]").click()
        until(page, lambda: english(page, "section[data-tour=questions]") == [])
        assert errors == []


NOTEBOOK = """<!doctype html><meta charset="utf-8"><body style="background:{paper}"><h2>a notebook</h2><div id="cell"></div>
<script type="module">
import widget from "./module.js"
const bytes = new DataView(Uint8Array.from(atob("{data}"), (one) => one.charCodeAt(0)).buffer)
const traits = {{ data: bytes, rules: {rules} }}
window.end = widget.render({{ model: {{ get: (name) => traits[name] }}, el: document.getElementById("cell") }})
</script>"""


def giving(body: str, kind: str) -> Callable[[Any], None]:
    return lambda route: route.fulfill(body=body, content_type=kind)


def test_widgets_of_a_notebook(studio: tuple[Session, str], browser: Any) -> None:
    """As anywidget would render them: a module, its traits and an element; the notebook around keeps its own look."""
    trace = small().trace(TEXT)
    script, rules = notebook.read_built_page()
    shown = {
        "cloud": notebook.pack_trace(trace, small().token_strings),
        "picture": notebook.pack_picture(rs.transport(trace), None, None),
    }
    paper = {"cloud": "#111111", "picture": "#ffffff"}
    with looking(browser) as (page, errors):
        page.route("**/module.js", giving(script, "text/javascript"))
        for name, data in shown.items():
            body = NOTEBOOK.format(paper=paper[name], data=base64.b64encode(data).decode(), rules=json.dumps(rules))
            page.route(f"**/{name}.html", giving(body, "text/html"))
        page.goto(f"{studio[1]}cloud.html")
        arrived(page)
        assert "".join(tokens(page)).endswith(TEXT)
        assert page.locator("#cell > [data-theme=dark]").count() == 1
        page.locator("input.steps").press("ArrowRight")
        assert page.locator("input.steps").input_value() == "1"
        assert page.url.endswith("cloud.html")
        page.evaluate("window.end()")
        assert page.locator("#cell *").count() == 0

        page.goto(f"{studio[1]}picture.html")
        page.wait_for_selector("#cell svg")
        assert page.locator("#cell figure").count() == len(picture_of(rs.transport(trace)).panels)
        assert page.locator("#cell > [data-theme=light]").count() == 1
        assert page.locator("h2", has_text="a notebook").evaluate("(one) => getComputedStyle(one).fontSize") == "24px"
        assert errors == []
