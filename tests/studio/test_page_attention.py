"""Attention on the text: arcs over the words, and maps with token names on both axes."""

from typing import Any

import pytest

from rheoscope.studio import detail_queries
from rheoscope.studio.session import Session
from rheoscope.studio.wire import unpack_envelope
from tests.studio import test_page
from tests.studio.cases import TEXT
from tests.studio.test_page import AXE, open_page, tokens, wait_for_cloud, wait_until

pytestmark = test_page.pytestmark
browser, studio = test_page.browser, test_page.studio
LAYER, HEAD = 1, 2


def arc_widths(page: Any) -> dict[int, float]:
    """The arcs over the words: position of the key → width."""
    read = "(paths) => paths.map((path) => [Number(path.dataset.key), Number(path.getAttribute('stroke-width'))])"
    return {int(key): width for key, width in page.locator("section.strip svg.arcs path").evaluate_all(read)}


def expected_widths(session: Session, query: int) -> dict[int, float]:
    """Key → width, in proportion to the largest weight of the query as the server sends it, which is 6 pixels wide."""
    opened_model = session.open_model("default")
    entry, _ = session.get_or_trace(opened_model, opened_model.job.result.result(60), TEXT, ())
    _, envelope = unpack_envelope(detail_queries.pack_head_map(entry, LAYER, HEAD, "weights"))
    weights = envelope["map"].decoded_values[query, : query + 1]
    shown = sorted(range(query + 1), key=lambda key: -weights[key])[:8]
    return {key: max(1, 6 * float(weights[key] / weights.max())) for key in shown if key != query}


@pytest.mark.parametrize(("width", "height"), [(1280, 720), (390, 844)])
def test_arcs_lead_to_the_keys_of_the_pinned_token(
    studio: tuple[Session, str], browser: Any, width: int, height: int
) -> None:
    """Without a pinned token they are those of the predicting token. The query is on the screen."""
    with open_page(browser) as (page, errors):
        page.set_viewport_size({"width": width, "height": height})
        page.goto(f"{studio[1]}#layer={LAYER}&head={HEAD}&text={TEXT.replace(' ', '+')}")
        wait_for_cloud(page)
        last = len(tokens(page)) - 1
        wait_until(page, lambda: arc_widths(page) == pytest.approx(expected_widths(studio[0], last), abs=0.01))
        region, last_token = (page.locator(name).last.bounding_box() for name in (".words", ".words li"))
        assert region["y"] <= last_token["y"]
        assert last_token["y"] + last_token["height"] <= region["y"] + region["height"] + 1
        page.locator("section.strip li button").nth(4).click()
        wait_until(page, lambda: arc_widths(page) == pytest.approx(expected_widths(studio[0], 4), abs=0.01))
        assert page.locator("p.reads").inner_text().startswith(f"L{LAYER}.H{HEAD}: ")
        assert errors == []


def test_maps_name_their_tokens_and_long_ones_are_a_sample(studio: tuple[Session, str], browser: Any) -> None:
    with open_page(browser, bypass_csp=True) as (page, errors):
        page.goto(f"{studio[1]}#view=heads&layer={LAYER}&head={HEAD}&text={TEXT.replace(' ', '+')}")
        wait_for_cloud(page)
        page.wait_for_selector("canvas.map")
        assert page.locator("canvas.map").first.get_attribute("data-names") == str(len(tokens(page)))
        assert page.get_by_text("A sample:").count() == 0
        page.goto(f"{studio[1]}#view=heads&layer={LAYER}&head={HEAD}&token=3&text={'+'.join(['sea'] * 90)}")
        page.get_by_text("A sample:").first.wait_for()
        canvas = page.locator("canvas.map").first
        assert canvas.get_attribute("data-names") == "64"
        page.set_viewport_size({"width": 390, "height": 844})
        wait_until(page, lambda: float(canvas.get_attribute("data-cell")) == 10)  # readable, so the map scrolls
        page.add_script_tag(path=str(AXE))
        report = page.evaluate("axe.run('figure, section.strip').then((report) => report.violations)")
        assert [(violation["id"], violation["nodes"][0]["target"]) for violation in report] == []
        assert errors == []
