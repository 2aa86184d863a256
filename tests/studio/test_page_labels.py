"""In the default view of the cloud, no label covers another label or a button by more than a fifth of its area."""

from itertools import permutations
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from rheoscope.studio.session import Session
from tests.studio import test_page
from tests.studio.cases import TEXT
from tests.studio.test_page import open_page, wait_for_cloud, wait_until

pytestmark = test_page.pytestmark
browser, studio = test_page.browser, test_page.studio

RECORD_LABELS = Path(__file__).with_name("record_labels.js")
CONTROLS = """[...document.querySelectorAll('#cloud .where, #cloud .tools button')].map((element) => {
  const [box, origin] = [element, document.querySelector('canvas[data-ready]')].map((part) => part.getBoundingClientRect())
  const [left, top] = [box.left - origin.left, box.top - origin.top]
  return { text: element.textContent, left, top, right: left + box.width, bottom: top + box.height }
})"""
"""The name of the step and the buttons, which lie on the cloud."""
TWO_FRAMES = "new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(resolve)))"
MAX_COVERED = 0.2


def covered_fraction(box: dict[str, Any], other: dict[str, Any]) -> float:
    """The fraction of the area of a box that another box covers."""
    width = min(box["right"], other["right"]) - max(box["left"], other["left"])
    height = min(box["bottom"], other["bottom"]) - max(box["top"], other["top"])
    return max(0, width) * max(0, height) / ((box["right"] - box["left"]) * (box["bottom"] - box["top"]))


@pytest.mark.parametrize("size", [(1440, 900), (1280, 720), (390, 844)])
def test_labels_do_not_cover_each_other(size: tuple[int, int], studio: tuple[Session, str], browser: Any) -> None:
    long_text = f"{TEXT} The cabinet and the table are in the house, and the keys to the house are in the cabinet."
    with open_page(browser) as (page, errors):
        page.add_init_script(path=str(RECORD_LABELS))
        page.set_viewport_size({"width": size[0], "height": size[1]})
        page.goto(f"{studio[1]}#view=dynamics&text={quote(long_text)}")
        wait_for_cloud(page)
        wait_until(page, lambda: len(page.evaluate("drawnLabels")) > 0)
        for step in (0, 3, 6):
            page.locator("input.steps").fill(str(step))
            page.evaluate(TWO_FRAMES)
            labels = page.evaluate("drawnLabels")
            assert any(label["text"].startswith("prediction") for label in labels)
            assert len(labels) > 4
            boxes = labels + page.evaluate(CONTROLS)
            covered = [
                (box["text"], other["text"])
                for box, other in permutations(boxes, 2)
                if covered_fraction(box, other) > MAX_COVERED
            ]
            assert covered == [], step
        assert errors == []
