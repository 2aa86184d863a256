"""The page in a real browser: texts, the scrubber, heads, edits, links, languages, exports and widgets."""

import base64
import gzip
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
from rheoscope.picture.token_labels import display_token
from rheoscope.report.draw_result import picture_of
from rheoscope.report.story import TEXT_LINES
from rheoscope.space.predictions import next_token_logprobs
from rheoscope.studio import export, notebook
from rheoscope.studio.corpus import LiveCorpusRun
from rheoscope.studio.model_sources import ModelSources
from rheoscope.studio.safety import AccessRules
from rheoscope.studio.server import create_app
from rheoscope.studio.session import Limits, Session
from rheoscope.studio.stored_example import PAGE_FOLDER
from rheoscope.studio.training_runs import TrainingRuns
from tests.studio.cases import TEXT, import_all_modules, load_small, run_corpus, small

AXE = Path(__file__).parents[2] / "frontend" / "node_modules" / "axe-core" / "axe.min.js"
CHROMIUM = os.environ.get("RHEOSCOPE_CHROMIUM") or next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
CHROMIUM_ARGUMENTS = ("--enable-unsafe-swiftshader", "--no-sandbox")
"""Arguments that allow WebGL without a graphics card. The page then uses it only where a test selects it."""
SERVER_TEXTS = "section[data-tour=story], #views h2, #views h3, #views svg text, #views [role=tooltip]"
"""Elements that show messages of the server: the story, titles, definitions and axis labels."""
pytestmark = [
    pytest.mark.skipif(not CHROMIUM, reason="chromium is not installed"),
    pytest.mark.skipif(not (PAGE_FOLDER / "index.html").exists(), reason="the page is not built; type make studio"),
]


@contextmanager
def serve_studio(
    corpus_run: LiveCorpusRun | None = None,
    training_runs: TrainingRuns | None = None,
    sources: ModelSources = ModelSources(),
) -> Iterator[tuple[Session, str]]:
    """A server with the small model on a free port."""
    uvicorn = pytest.importorskip("uvicorn")
    import_all_modules()
    session = Session(load_small, sources, Limits(max_tokens=100))
    server = uvicorn.Server(
        uvicorn.Config(
            create_app(session, AccessRules(), PAGE_FOLDER, corpus_run=corpus_run, training_runs=training_runs),
            port=0,
            log_level="error",
        )
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
    with serve_studio() as session_and_url:
        yield session_and_url


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=list(CHROMIUM_ARGUMENTS))
        yield browser
        browser.close()


def limit_story(route: Any) -> None:
    """Ask for one line of the story only, because server and test share a process."""
    if route.request.method == "POST":
        route.continue_(post_data=json.dumps({"lines": ["next_token"]} | route.request.post_data_json))
    else:
        route.continue_()


@contextmanager
def open_page(browser: Any, **options: Any) -> Iterator[tuple[Any, list[str]]]:
    """A page and the list of its errors: console errors, exceptions and failed requests."""
    page = browser.new_page(viewport={"width": 800, "height": 600}, reduced_motion="reduce", **options)
    page.set_default_timeout(15_000)
    page.route("**/api/traces", limit_story)
    errors: list[str] = []
    page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("response", lambda response: errors.append(response.url) if response.status >= 400 else None)
    yield page, errors
    page.close()


def wait_for_cloud(page: Any) -> None:
    page.wait_for_selector("canvas[data-ready=yes]")


def wait_until(page: Any, condition: Callable[[], bool]) -> None:
    """Poll a condition. The security policy of the page forbids `wait_for_function`, which evaluates a string."""
    for _ in range(600):
        if condition():
            return
        page.wait_for_timeout(25)
    raise AssertionError("the condition did not hold within 15 s")


def wait_for_url(page: Any, fragment: str) -> None:
    """Wait until the URL contains a fragment. It may change after the key press is handled."""
    wait_until(page, lambda: fragment in page.url)


def open_view_options(page: Any) -> None:
    page.locator(".options > summary").click()


def tokens(page: Any) -> list[str]:
    return [text.replace("·", " ") for text in page.locator("section.strip li button").all_inner_texts()]


def test_a_session_from_text_to_edit_and_back(studio: tuple[Session, str], browser: Any) -> None:
    with open_page(browser) as (page, errors):
        page.goto(f"{studio[1]}#field=scores.centred&colour=token&text=One+day+the+king+took+the+gold+from+the+bank")
        wait_for_cloud(page)
        assert page.locator("section[data-tour=story] li:not(.model)").count() == len(TEXT_LINES)

        page.keyboard.press("/")
        page.locator("textarea").fill(TEXT)
        page.keyboard.press("Enter")
        wait_until(page, lambda: "".join(tokens(page)).endswith(TEXT))
        wait_for_url(page, "text=")

        page.keyboard.press("ArrowRight")
        page.keyboard.press("ArrowRight")
        wait_for_url(page, "step=2")
        assert page.locator("input.steps").input_value() == "2"

        page.locator("section.strip li button").nth(3).click()
        wait_for_url(page, "token=3")

        page.wait_for_selector("canvas.heads")
        heads = page.locator("canvas.heads")
        heads.scroll_into_view_if_needed()
        heads.click(position={"x": 50, "y": 30})
        wait_for_url(page, "layer=0")
        wait_for_url(page, "head=0")

        page.locator("form.operate select").first.select_option("ablate")
        page.locator("form.operate button[type=submit]").click()
        page.wait_for_selector(".chip")
        page.wait_for_selector(".moved")  # the prediction before and after the edit
        wait_for_url(page, "edits=0.0.both.ablate")

        page.locator("figure.images").get_by_role("button", name="difference").click()
        page.get_by_text("Rings mark the tokens before the edits").wait_for()
        open_view_options(page)
        page.locator("input[data-show=moves]").check()
        page.get_by_text("change of the update by").wait_for()
        wait_for_url(page, "side=difference")

        page.reload()
        wait_for_cloud(page)
        page.wait_for_selector(".moved")
        assert page.locator(".chip").count() == 1
        assert "".join(tokens(page)).endswith(TEXT)
        assert page.locator("input.steps").input_value() == "2"

        page.go_back()
        page.wait_for_selector(".chip", state="detached")
        page.go_forward()
        page.wait_for_selector(".chip")

        page.locator("button[lang=zh-Hans]").click()
        wait_until(page, lambda: page.locator("#story").inner_text() == "这段文本中发生了什么")
        assert page.evaluate("document.documentElement.lang") == "zh-Hans"
        wait_for_url(page, "language=zh")
        assert errors == []


def top_and_bottom(page: Any, selector: str) -> tuple[float, float]:
    box = page.locator(selector).first.bounding_box()
    return box["y"], box["y"] + box["height"]


def test_cloud_and_scrubber_share_the_first_screen(studio: tuple[Session, str], browser: Any) -> None:
    """At three sizes, without scrolling. On a phone both stay on the screen while the page scrolls."""
    with open_page(browser) as (page, errors):
        for width, height in ((1440, 900), (1280, 720), (390, 844)):
            page.set_viewport_size({"width": width, "height": height})
            page.goto(f"{studio[1]}#view=dynamics&text={quote(TEXT)}")
            wait_for_cloud(page)
            wait_until(page, lambda height=height: top_and_bottom(page, ".scrubber")[1] <= height)
            top, bottom = top_and_bottom(page, "canvas[data-ready]")
            assert top >= 0
            assert bottom <= top_and_bottom(page, ".scrubber")[0]
            assert bottom - top > 0.35 * height
        page.evaluate("scrollTo(0, 500)")
        wait_until(page, lambda: page.evaluate("scrollY") > 0)
        assert top_and_bottom(page, "canvas[data-ready]")[0] >= 0
        assert top_and_bottom(page, ".scrubber")[1] <= 844
        assert errors == []


def test_the_bars_follow_the_scrubber(studio: tuple[Session, str], browser: Any) -> None:
    with open_page(browser) as (page, errors):
        page.goto(f"{studio[1]}#view=dynamics&text={quote(TEXT)}")
        wait_for_cloud(page)
        trace = small().trace(TEXT)
        bars = page.locator("section[aria-labelledby=next-token] li bdi")
        for step in (0, len(trace.steps) - 1):
            page.locator("input.steps").fill(str(step))
            logprobs = next_token_logprobs(trace.view, trace.points[step, -1:])[0].detach()
            expected = [display_token(token) for token in small().token_strings(logprobs.topk(5).indices.tolist())]
            wait_until(page, lambda expected=expected: bars.all_inner_texts() == expected)
        assert errors == []


def test_a_short_text_shows_reasons_instead_of_errors(studio: tuple[Session, str], browser: Any) -> None:
    with open_page(browser) as (page, errors):
        page.goto(f"{studio[1]}#view=clusters&text=The")
        wait_for_cloud(page)
        page.get_by_text("use a longer text").first.wait_for()
        assert errors == []


def test_a_long_text_is_shown_in_windows(studio: tuple[Session, str], browser: Any) -> None:
    long_text = " ".join(f"{TEXT} {k}" for k in range(12))  # the server is limited to 100 tokens
    with open_page(browser) as (page, errors):
        page.goto(f"{studio[1]}#view=dynamics&text={quote(long_text)}")
        wait_for_cloud(page)
        window_label = page.locator(".window")
        assert "tokens 1–99 of " in window_label.inner_text()
        first_tokens = tokens(page)
        page.get_by_role("button", name="next tokens").click()
        wait_until(page, lambda: tokens(page) != first_tokens)
        wait_for_url(page, "window=2")
        page.go_back()
        wait_until(page, lambda: tokens(page) == first_tokens)
        assert errors == []


def test_arrows_coupling_axes_images_graph_and_clusters(studio: tuple[Session, str], browser: Any) -> None:
    with open_page(browser, accept_downloads=True) as (page, errors):
        page.goto(f"{studio[1]}#field=scores.centred&colour=token&layer=1&head=2&token=3&text={TEXT}")
        wait_for_cloud(page)
        page.wait_for_selector(".pairs li")
        page.wait_for_selector(".lists li")
        count = len(tokens(page))
        for selector, n_rows in (
            ("figure.images", 4 * count),
            ("figure:has(canvas.map)", count**2),
            ("section.cloud .tools", 7 * count),
        ):
            with page.expect_download() as download:
                page.locator(selector).first.locator("button", has_text="CSV").click()
            csv_lines = Path(download.value.path()).read_text(encoding="utf-8").splitlines()
            assert f"# text: {TEXT}" in csv_lines
            assert sum(not line.startswith("#") for line in csv_lines) == n_rows + 1, selector
        open_view_options(page)
        for name in ("moves", "coupling"):
            page.locator(f"input[data-show={name}]").check()
            page.wait_for_selector(f"[data-legend={name}]")
        wait_for_url(page, "show=arcs%2Cmoves%2Ccoupling")

        page.locator("select.axes").select_option("+tokens")
        page.locator("dialog input").fill("#5, #9")
        page.keyboard.press("Enter")
        wait_until(page, lambda: "These 2 axes" in page.locator(".foot").inner_text())
        page.locator("select.axes").select_option("+text")
        page.locator("dialog textarea").fill("One day the king took the gold")
        page.locator("dialog .go").click()
        wait_until(page, lambda: "from another text" in page.locator(".foot").inner_text())
        page.go_back()
        wait_until(page, lambda: "These 2 axes" in page.locator(".foot").inner_text())

        page.locator("#tab-clusters").click()
        page.wait_for_selector(".alluvial rect")
        with page.expect_download() as download:
            page.locator(".alluvial button", has_text="SVG").click()
        assert download.value.suggested_filename == "rheoscope-how-clusters-merge-and-split.svg"
        page.locator("#tab-composition").click()
        page.locator("p.ask button").click()
        page.locator(".composition circle").nth(9).click()
        wait_for_url(page, "layer=2&head=1")
        assert errors == []


def english_phrases(page: Any, selector: str) -> list[str]:
    """Runs of three or more English words in the elements of a selector, apart from commands."""
    texts = page.locator(selector).all_text_contents()
    phrases = [phrase for text in texts for phrase in re.findall(r"(?:[A-Za-z]{2,} ){2,}[A-Za-z]{2,}", text)]
    return [phrase for phrase in phrases if not phrase.startswith("rheoscope ")]


def test_the_page_shows_messages_of_the_server_in_chinese(studio: tuple[Session, str], browser: Any) -> None:
    with open_page(browser) as (page, errors):
        for view in ("all:trajectory", "heads"):
            page.goto(f"{studio[1]}#language=zh&field=scores.centred&view={view}")
            wait_for_cloud(page)
            page.locator("#views figure, #views canvas").first.wait_for()
            wait_until(page, lambda: page.locator("section[data-tour=story] .waiting").count() < len(TEXT_LINES))
            wait_until(page, lambda: english_phrases(page, SERVER_TEXTS) == [])

        page.goto(f"{studio[1]}#language=zh&view=all:trajectory")
        title = page.locator("#views h3 button").first
        title.focus()  # the keyboard focus shows the definition
        page.locator(f"[id='{title.get_attribute('aria-describedby')}']").wait_for(state="visible")
        assert errors == []


def test_the_untrained_control_is_compared(studio: tuple[Session, str], browser: Any) -> None:
    with open_page(browser) as (page, errors):
        page.goto(f"{studio[1]}#field=scores.centred&colour=token&text=One+day+the+king+took+the+gold+from+the+bank")
        wait_for_cloud(page)
        page.locator("header select").select_option("untrained")
        page.wait_for_selector("#panel table >> nth=1")
        wait_for_url(page, "compareWith=untrained")
        assert errors == []


def run_slowly(subject: Any, name: str, settings: Any, nulls: bool, progress: Any) -> Any:
    """A stand-in for an analysis of one minute that stops when its job is cancelled."""
    for done in range(1200):
        progress(done, 1200)
        time.sleep(0.05)


def test_particles_of_a_simulation_are_drawn(studio: tuple[Session, str], browser: Any) -> None:
    has_ink = "() => document.querySelector('.dynamics canvas').getContext('2d').getImageData(0, 0, 900, 900).data.some((value) => value)"
    with open_page(browser) as (page, errors):
        page.goto(f"{studio[1]}#view=dynamics&text={quote(TEXT)}")
        page.locator(".dynamics canvas").wait_for()
        wait_until(page, lambda: page.evaluate(has_ink))
        assert errors == []


def test_a_long_run_can_be_cancelled(
    studio: tuple[Session, str], browser: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_page(browser) as (page, errors):
        page.goto(f"{studio[1]}#view=dynamics&text=The+keys")
        wait_for_cloud(page)
        monkeypatch.setattr("rheoscope.studio.session.run_analysis", run_slowly)
        page.keyboard.press("/")
        page.locator("textarea").fill(f"{TEXT} once more")
        page.keyboard.press("Enter")
        page.locator(".act button", has_text="cancel").click()
        assert page.locator("[role=alert]").inner_text() == "Cancelled"
        assert errors == []


def test_a_link_with_an_edit_shows_the_state_before_it(
    studio: tuple[Session, str], browser: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The comparison appears before the slow analyses of the edited text end."""
    monkeypatch.setattr("rheoscope.studio.session.run_analysis", run_slowly)
    with open_page(browser) as (page, errors):
        page.goto(f"{studio[1]}#layer=0&head=1&edits=0.1.M.symmetric&text=One+day+the+king+took+it")
        page.get_by_text(re.compile("symmetry .* → 1")).wait_for()
        page.locator(".act button", has_text="cancel").click()
        assert errors == []


def test_hostile_text_is_shown_as_text(studio: tuple[Session, str], browser: Any) -> None:
    """HTML, direction marks and control characters are displayed, and no script runs."""
    hostile_text = "<img src=x onerror=alert(1)> \u202eabc\u0000 <script>1</script>"
    with open_page(browser) as (page, errors):
        page.goto(f"{studio[1]}#field=scores.centred&colour=token&text=One+day+the+king+took+the+gold+from+the+bank")
        wait_for_cloud(page)
        page.keyboard.press("/")
        page.locator("textarea").fill(hostile_text)
        page.keyboard.press("Enter")
        wait_until(page, lambda: "onerror" in "".join(tokens(page)))
        assert page.locator("main img, main script").count() == 0
        assert errors == []


def test_the_page_has_no_serious_accessibility_violation(studio: tuple[Session, str], browser: Any) -> None:
    """axe-core checks the light and the dark theme."""
    if not AXE.exists():
        pytest.skip("axe-core is not installed; type make studio")
    with open_page(browser, bypass_csp=True) as (page, _):
        page.goto(
            f"{studio[1]}#field=scores.centred&colour=token&text=One+day+the+king+took+the+gold+from+the+bank&layer=0&head=1&token=1"
        )
        wait_for_cloud(page)
        page.wait_for_selector("canvas.heads")
        page.add_script_tag(path=str(AXE))
        for theme in ("light", "dark"):
            assert page.evaluate("document.documentElement.dataset.theme") == theme
            violations = page.evaluate("axe.run().then((report) => report.violations)")
            serious = [violation for violation in violations if violation["impact"] in ("serious", "critical")]
            assert [
                (violation["id"], [node["target"] for node in violation["nodes"]][:3]) for violation in serious
            ] == []
            page.locator("header .theme").click()


def test_a_corpus_example_opens_as_a_text(browser: Any, tmp_path: Path) -> None:
    """A head on the map leads to its distribution, to an example and to that text. axe-core checks the view."""
    pytest.importorskip("duckdb")
    corpus_run = run_corpus(tmp_path / "run", [TEXT, TEXT[4:], TEXT[9:]])
    with serve_studio(corpus_run) as (_, url), open_page(browser, bypass_csp=True) as (page, errors):
        page.goto(f"{url}#view=corpus&field=head_statistics.first_token_weight")
        page.wait_for_selector("canvas.heads")
        page.locator("canvas.heads").click(position={"x": 50, "y": 30})
        wait_for_url(page, "layer=0&head=0")
        page.get_by_text("Over the corpus").wait_for()
        if AXE.exists():
            page.add_script_tag(path=str(AXE))
            violations = page.evaluate("axe.run('#views').then((report) => report.violations)")
            assert [violation["id"] for violation in violations if violation["impact"] in ("serious", "critical")] == []
        page.locator("button.example .text span[style*=color-mix]").first.wait_for()  # tokens are coloured by the head
        example = page.locator("button.example").first
        example_text = example.locator(".text").inner_text()
        example.click()
        wait_until(page, lambda: "".join(tokens(page)).endswith(example_text))
        wait_for_url(page, "field=head_statistics.first_token_weight&layer=0&head=0")
        page.wait_for_selector("#tab-heads[aria-selected=true]")
        page.go_back()
        page.wait_for_selector("button.example")
        assert errors == []


def test_an_export_opens_from_disk(studio: tuple[Session, str], browser: Any, tmp_path: Path) -> None:
    session, _ = studio
    opened_model = session.open_model("default")
    entry, _ = session.get_or_trace(opened_model, opened_model.job.result.result(60), TEXT, ())
    export.write_export(tmp_path / "page", session, entry, PAGE_FOLDER)
    with open_page(browser) as (page, errors):
        page.goto((tmp_path / "page" / "index.html").as_uri())
        wait_for_cloud(page)
        assert "".join(tokens(page)).endswith(TEXT)
        page.keyboard.press("ArrowRight")
        wait_for_url(page, "step=1")
        page.keyboard.press("ArrowDown")
        page.wait_for_selector("canvas.map")
        page.locator("button[lang=zh-Hans]").click()
        wait_until(page, lambda: english_phrases(page, "section[data-tour=story]") == [])
        assert errors == []


NOTEBOOK = """<!doctype html><meta charset="utf-8"><body style="background:{paper}"><h2>a notebook</h2>
<div id="cell"></div><div id="second"></div>
<script type="module">
import widget from "./cell.js"
const unpack = (text) => new DataView(Uint8Array.from(atob(text), (character) => character.charCodeAt(0)).buffer)
const find = (id) => pages[id] ?? Promise.reject(Error("no such widget"))
const model = (traits) => ({{ get: (name) => traits[name], widget_manager: {{ get_model: find }} }})
const pages = {{ shared: model({{ script: unpack("{script}"), rules: unpack("{rules}") }}) }}
const cell = {{ page: "IPY_MODEL_shared", data: unpack("{data}") }}
window.end = await widget.render({{ model: model(cell), el: document.getElementById("cell") }})
await widget.render({{ model: model({{ ...cell, page: "IPY_MODEL_closed" }}), el: document.getElementById("second") }})
</script>"""


def respond_with(body: str, content_type: str) -> Callable[[Any], None]:
    return lambda route: route.fulfill(body=body, content_type=content_type)


def test_notebook_widgets_render(studio: tuple[Session, str], browser: Any) -> None:
    """The widgets are rendered as anywidget does it. The style of the notebook around them stays."""
    trace = small().trace(TEXT)
    script, rules = (base64.b64encode(gzip.compress(text.encode())).decode() for text in notebook.read_built_page())
    widget_data = {
        "cloud": notebook.pack_trace(trace, small().token_strings),
        "picture": notebook.pack_picture(rs.transport(trace), None, None),
    }
    backgrounds = {"cloud": "#111111", "picture": "#ffffff"}
    with open_page(browser) as (page, errors):
        page.route("**/cell.js", respond_with(notebook.CELL_MODULE.read_text(encoding="utf-8"), "text/javascript"))
        for name, data in widget_data.items():
            packed_data = base64.b64encode(data).decode()
            body = NOTEBOOK.format(paper=backgrounds[name], data=packed_data, script=script, rules=rules)
            page.route(f"**/{name}.html", respond_with(body, "text/html"))
        page.goto(f"{studio[1]}cloud.html")
        wait_for_cloud(page)
        assert "".join(tokens(page)).endswith(TEXT)
        assert page.locator("#cell > [data-theme=dark]").count() == 1
        page.locator("input.steps").press("ArrowRight")
        assert page.locator("input.steps").input_value() == "1"
        assert page.url.endswith("cloud.html")
        assert page.locator("#second").inner_text().endswith("(no such widget). Run the cell again.")
        page.evaluate("window.end()")
        assert page.locator("#cell *").count() == 0

        page.goto(f"{studio[1]}picture.html")
        page.wait_for_selector("#cell svg")
        assert page.locator("#cell figure").count() == len(picture_of(rs.transport(trace)).panels)
        assert page.locator("#cell > [data-theme=light]").count() == 1
        assert (
            page.locator("h2", has_text="a notebook").evaluate("(heading) => getComputedStyle(heading).fontSize")
            == "24px"
        )
        assert errors == []
