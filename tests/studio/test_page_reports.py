"""The views of cards, of the atlas and of training runs in a browser: no text is cut, and axe finds no violation."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from rheoscope.report.card_cache import SHIPPED_CARDS, read_card
from rheoscope.report.story import TEXT_LINES
from rheoscope.studio import cards
from rheoscope.studio.model_sources import ModelSources
from rheoscope.studio.session import Session
from rheoscope.studio.training_runs import TrainingRuns
from tests.studio import test_page
from tests.studio.cases import TEXT
from tests.studio.run_folders import write_race, write_training_run
from tests.studio.test_page import AXE, open_page, serve_studio, wait_for_cloud, wait_for_url, wait_until
from tests.studio.test_page_layout import CUT_TEXT, SIZES, open_all_details

pytestmark = test_page.pytestmark
browser, studio = test_page.browser, test_page.studio


@contextmanager
def opened_view(browser: Any, url: str, selector: str) -> Iterator[Any]:
    """A page of a view, without errors."""
    with open_page(browser, bypass_csp=True) as (page, errors):
        page.goto(url)
        page.locator(selector).first.wait_for()
        yield page
        assert errors == []


def check_view(page: Any, url: str, selector: str) -> None:
    """Nothing is cut at three sizes and in two languages, and axe finds no violation in either theme."""
    for language in ("en", "zh"):
        page.goto(f"{url}&language={language}")
        page.locator(selector).first.wait_for()
        open_all_details(page)
        for width, height in SIZES:
            page.set_viewport_size({"width": width, "height": height})
            page.evaluate("new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(resolve)))")
            assert [cut for cut in page.evaluate(CUT_TEXT) if "#panel" in cut[2]] == [], (language, width)
        check_axe(page)
        page.locator("header .theme").click()  # the second language in the other theme


def check_axe(page: Any) -> None:
    if AXE.exists():
        page.add_script_tag(path=str(AXE))
        violations = page.evaluate("axe.run('#views').then((report) => report.violations)")
        assert [
            (violation["id"], [node["target"] for node in violation["nodes"]][:3]) for violation in violations
        ] == []


def test_the_card_opens_row_by_row(studio: tuple[Session, str], browser: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    card = read_card(next(SHIPPED_CARDS.glob("*.json")))
    monkeypatch.setattr(cards, "find_card", lambda view: card)
    with opened_view(browser, f"{studio[1]}card", ".rows details") as page:
        assert page.url.endswith("#view=card")
        assert page.locator(".rows details").count() == card.sizes["claim"]
        page.locator(".rows summary").first.focus()
        page.keyboard.press("Enter")
        page.locator(".detail svg").first.wait_for()
        assert "Untrained control" in page.locator(".detail dl").first.inner_text()
        page.get_by_text("Numbers:").click()
        assert page.locator(".blocks tbody tr").count() == card.sizes["interval"]
        check_view(page, f"{studio[1]}#view=card", ".rows details")


def test_the_atlas_has_a_forest_plot_per_claim(studio: tuple[Session, str], browser: Any) -> None:
    with opened_view(browser, f"{studio[1]}atlas", "#panel figure") as page:
        assert page.locator("#panel figure").count() == read_card(next(SHIPPED_CARDS.glob("*.json"))).sizes["claim"]
        assert page.locator("#panel .command code").inner_text() == "rheoscope card gpt2"
        check_view(page, f"{studio[1]}#view=atlas", "#panel figure")


def test_a_race_is_followed_while_it_runs(browser: Any, tmp_path: Path) -> None:
    """The page shows every new evaluation without a reload."""
    write_race(tmp_path / "race", entrants=["untied"], n_evaluations=2)
    write_training_run(tmp_path / "run")
    with (
        serve_studio(training_runs=TrainingRuns(tmp_path)) as (_, url),
        opened_view(browser, f"{url}learning", "#panel figure") as page,
    ):
        page.get_by_text("1 of 2 runs have been evaluated").wait_for()
        write_race(tmp_path / "race")
        page.get_by_text("0 ahead, 1 behind").wait_for()
        page.locator("#panel select").select_option("run")
        page.get_by_text("Step 20 of 20").wait_for()
        wait_for_url(page, "run=run")
        page.go_back()
        page.get_by_text("0 ahead, 1 behind").wait_for()
        check_view(page, f"{url}#view=learning&run=race", "#panel figure")


def request_one_line(route: Any) -> None:
    """One line of the story is enough for a test, and the others take long."""
    route.continue_(post_data=json.dumps(route.request.post_data_json | {"lines": ["next_token"]}))


def check_one_camera(page: Any, axes: str) -> None:
    """Dragging one of the two clouds of a comparison rotates both."""
    clouds = page.locator(".compare .two .box > canvas")
    clouds.nth(1).wait_for()
    page.locator(".compare p", has_text=axes).wait_for()
    before = [picture.evaluate("canvas => canvas.toDataURL()") for picture in clouds.all()]
    clouds.first.drag_to(clouds.first, source_position={"x": 60, "y": 120}, target_position={"x": 160, "y": 150})
    wait_until(
        page,
        lambda: all(
            picture.evaluate("canvas => canvas.toDataURL()") != old
            for picture, old in zip(clouds.all(), before, strict=True)
        ),
    )


def test_two_texts_and_two_checkpoints_are_compared(browser: Any, tmp_path: Path) -> None:
    """Both sides have their next tokens and every line of the story; the picker offers the checkpoints of a run."""
    run = write_training_run(tmp_path / "run")
    (run / "last").mkdir()
    (run / "last" / "config.json").write_text("{}")
    sources = ModelSources(roots=TrainingRuns(tmp_path).model_roots())
    with (
        serve_studio(sources=sources) as (_, url),
        opened_view(browser, f"{url}#view=compare&text={TEXT}", ".pick select") as page,
    ):
        page.route("**/api/traces", request_one_line)
        page.locator(".pick input").fill("One day the king took the gold from the bank.")
        page.keyboard.press("Enter")
        page.locator(".compare table").first.wait_for()
        wait_for_url(page, "compareWith=text")
        headings = page.locator(".compare h3").all_inner_texts()[:2]
        assert headings == ["“One day the king took the gold from the bank.”", f"“{TEXT}”"]
        rows = page.locator(".compare table[aria-label] tbody tr")
        wait_until(page, lambda: rows.count() == len(TEXT_LINES) and "…" not in rows.first.inner_text().split())
        check_one_camera(page, "on the same axes")
        page.locator(".pick select").first.select_option(label="run/last")
        wait_for_url(page, "last")
        wait_until(page, lambda: not page.locator(".compare h3").first.inner_text().startswith("“"))
        check_one_camera(page, "on the same axes")
        page.locator(".compare .blocks", has_text="Both models have the same weights.").wait_for()
        check_view(page, page.url.replace("&language=en", ""), ".compare table")


def test_the_story_ends_with_the_card_and_its_command_can_be_copied(studio: tuple[Session, str], browser: Any) -> None:
    with open_page(browser, bypass_csp=True) as (page, errors):
        page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        page.goto(studio[1])
        line = page.locator("#story-lines .model")
        line.wait_for()
        command = line.locator("code").inner_text()
        assert command == "rs.card(model)"
        line.locator(".command button").focus()
        page.keyboard.press("Enter")
        wait_until(page, lambda: page.locator(".command [role=status]").inner_text() == "Command copied")
        assert page.evaluate("navigator.clipboard.readText()") == command
        line.locator(".row-button").click()
        wait_for_url(page, "view=card")
        assert page.locator("#panel code").inner_text() == command
        assert errors == []


def test_definitions_translate_the_messages_of_a_result(studio: tuple[Session, str], browser: Any) -> None:
    with open_page(browser) as (page, errors):
        page.goto(f"{studio[1]}#language=zh&view=energy")
        wait_for_cloud(page)
        page.locator("#panel details.definitions summary").click()
        provenance = page.locator("#panel details.definitions p").inner_text()
        assert "出现任何一个的概率为 5" in provenance
        assert "template" not in provenance
        assert errors == []


def test_a_slow_analysis_shows_its_finished_share(studio: tuple[Session, str], browser: Any) -> None:
    with open_page(browser) as (page, errors):
        progress = 'event: progress\ndata: {"name": "composition", "done": 1, "total": 4}\n\n'
        page.route("**/progress?*", lambda route: route.fulfill(body=progress, content_type="text/event-stream"))
        page.route("**/analyses/composition", lambda route: None)  # its result does not arrive
        page.goto(f"{studio[1]}#view=composition")
        wait_for_cloud(page)
        page.locator("p.ask button").click()
        page.get_by_text("Computing composition: 25 %").wait_for()
        page.unroute_all(behavior="ignoreErrors")
        assert errors == []
