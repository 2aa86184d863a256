"""An encoder-decoder on the page: a switch between two clouds, and arcs from a target token to the source."""

from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest

from rheoscope.studio.startup import bind_socket
from tests.studio import test_page
from tests.studio.cases import import_all_modules
from tests.studio.test_page import AXE, open_page, tokens, wait_for_cloud, wait_until
from tests.studio.test_page_state import serve
from tests.studio.test_pairs import SOURCE, TARGET, load, translator

pytestmark = test_page.pytestmark
browser = test_page.browser
LAYER, HEAD, TOKEN = 1, 2, 3


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    import_all_modules()
    translator()
    listener = bind_socket("127.0.0.1", 0)
    with serve(load, listener):
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/"


def wait_for_side(page: Any, name: str) -> None:
    wait_until(page, lambda: page.locator(".clouds [aria-pressed=true]").all_inner_texts() == [name])


def test_a_target_is_typed_and_both_clouds_are_shown(address: str, browser: Any) -> None:
    with open_page(browser) as (page, errors):
        page.goto(f"{address}#view=dynamics&text={quote(SOURCE)}")
        wait_for_cloud(page)
        wait_for_side(page, "Source")
        page.locator(".clouds button", has_text="Target").click()  # there is none yet, so the page asks for it
        page.locator("label.target textarea").fill(TARGET)
        page.locator("label.target textarea").press("Enter")
        wait_for_side(page, "Target")
        assert "".join(tokens(page)).endswith(TARGET)
        assert "Source path" in page.locator("section[data-tour=story]").inner_text()
        page.locator(".clouds button", has_text="Source").click()
        wait_for_side(page, "Source")
        assert "cloud=source" in page.url
        assert "Source path" not in page.locator("section[data-tour=story]").inner_text()
        assert errors == []


def test_the_models_own_output_fills_the_target(address: str, browser: Any) -> None:
    with open_page(browser) as (page, errors):
        page.goto(f"{address}#view=dynamics&text={quote(SOURCE)}")
        wait_for_side(page, "Source")
        page.locator(".clouds button", has_text="Target").click()
        page.get_by_text("Write the model’s own output").click()
        wait_until(page, lambda: page.locator("label.target textarea").input_value() != "")
        assert errors == []


def test_arcs_lead_from_a_target_token_to_the_source(address: str, browser: Any) -> None:
    selection = f"layer={LAYER}&head={HEAD}&token={TOKEN}"
    with open_page(browser, bypass_csp=True) as (page, errors):
        page.goto(f"{address}#view=dynamics&text={quote(SOURCE)}&target={quote(TARGET)}&{selection}")
        wait_for_side(page, "Target")
        source = page.get_by_role("list", name="Tokens of the source")
        source.wait_for()
        trace = translator().trace((SOURCE, TARGET))
        assert source.locator("li").count() == len(trace.source.tokens)
        page.locator("[data-cross=true]").wait_for()
        weights = trace.target.cross_weights(LAYER, HEAD)[TOKEN]
        arcs = page.locator(".words.pair > svg.arcs").first.locator("path")
        keys = [int(arc.get_attribute("data-key")) for arc in arcs.all()]
        assert len(set(keys)) == 8
        assert float(weights[keys].min()) >= float(weights.topk(8).values.min()) - 1 / 254  # a map has 254 levels
        sentence = page.locator("[data-cross=true]").inner_text()
        assert f"L{LAYER}.H{HEAD} of cross-attention" in sentence
        assert f"{round(100 * float(weights.max()))}\u00a0%" in sentence
        page.add_script_tag(path=str(AXE))
        report = page.evaluate("axe.run('section.strip').then((report) => report.violations)")
        assert [(violation["id"], violation["nodes"][0]["target"]) for violation in report] == []
        assert errors == []


def test_the_scrubber_keeps_its_relative_depth(address: str, browser: Any) -> None:
    with open_page(browser) as (page, _):
        page.goto(f"{address}#view=dynamics&text={quote(SOURCE)}&target={quote(TARGET)}&step=3")
        wait_for_side(page, "Target")
        page.locator(".clouds button", has_text="Source").click()
        wait_for_side(page, "Source")
        assert "step=2" in page.url  # 3 of 6 steps after the embedding, and 2 of 4
