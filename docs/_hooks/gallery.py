"""The gallery page: runs the example of every analysis while the site is built, and inserts its picture.

`<!-- gallery -->` is replaced by one section per analysis. Pictures are inserted into the finished page, so that the search
index does not contain their numbers. Their style is written to stylesheets/drawn.css.
"""

import re
from functools import cache
from pathlib import Path
from typing import Any

from rheoscope.catalogue import ANALYSIS_MODULES, analysis_by_name
from rheoscope.report.draw.inline import picture_html
from rheoscope.report.draw_result import picture_of
from rheoscope.report.style import DRAWING_CSS

OPENING, GALLERY = "<!-- opening -->", "<!-- gallery -->"
ROOT = Path(__file__).resolve().parents[2]
EXTRA_SETTINGS = {
    "agreement": "draws=20",
    "boundary": "layers=[0, 5], iterations=4",
    "charts": "n_neighbours=5, draws=4",
    "distortion": "draws=4",
    "fixed_point": "layers=[0, 3, 5], iterations=6",
    "heat": "draws=4",
    "operators": "draws=20",
    "rollout": "probes=4",
    "senses": "draws=200",
    "stack": "draws=4",
    "transport": "draws=20",
    "decay": 'heads=model.view.head_indices(3), M="symmetric"',
    "faithfulness": 'targets=[" river", " river"], foils=[" bank", " bank"], draws=1',
    "massive_tokens": "norm_ratio=1.5",
    "score_attribution": "layer=4, head=3",
    "surgery": 'heads=model.view.head_indices(2), M="symmetric"',
}
"""Settings that an analysis needs to show something, and fewer draws, so that the site builds quickly."""
ARGUMENTS = {"view": "model.view", "trace": "trace", "model": "model", "text": "text", "texts": "texts"}


def opening() -> str:
    """The lines before all examples. They use the sample text of the Makefile, one sentence per line."""
    text = re.findall(r'^SAMPLE := "(.*)"$', (ROOT / "Makefile").read_text(encoding="utf-8"), re.M)[0]
    sentences = [f"{sentence}. " for sentence in text.split(". ")]
    sentences[-1] = sentences[-1].removesuffix(". ")
    lines = ["import rheoscope as rs", "", "model = rs.load()", "text = ("]
    lines += [f'    "{sentence}"' for sentence in sentences]
    lines += [
        ")",
        'texts = ["The king sent his ship down the", "The children sent their ship down the"]',
        "trace = model.trace(text)",
    ]
    return "\n".join(lines)


def example(name: str) -> str:
    """The lines that run one analysis and plot its result."""
    subjects = ", ".join(ARGUMENTS[subject] for subject in analysis_by_name(name).subjects)
    settings = f", {EXTRA_SETTINGS[name]}" if name in EXTRA_SETTINGS else ""
    return f"result = rs.{name}({subjects}{settings})\nrs.show(result, token_strings=model.token_strings)            # rs.plot for papers"


def as_page() -> str:
    """One section per analysis: its question, its example and a placeholder for its picture."""
    return "\n\n".join(
        f'## {name}\n\n{analysis_by_name(name).question}\n\n```python\n{example(name)}\n```\n\n<div data-picture="{name}"></div>'
        for name in ANALYSIS_MODULES
    )


@cache
def opened() -> dict[str, Any]:
    """The variables that the opening lines define."""
    namespace: dict[str, Any] = {}
    exec(opening(), namespace)
    return namespace


def picture(name: str) -> str:
    """The picture of an analysis, computed by the first line of its example."""
    namespace = dict(opened())
    exec(example(name).splitlines()[0], namespace)
    return f'<div class="drawn">{picture_html(picture_of(namespace["result"], token_strings=namespace["model"].token_strings))}</div>'


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    if GALLERY not in markdown:
        return markdown
    return markdown.replace(OPENING, f"```python\n{opening()}\n```").replace(GALLERY, as_page())


def on_post_page(output: str, *, page: Any, **_: Any) -> str:
    return re.sub(r'<div data-picture="?(\w+)"?></div>', lambda match: picture(match[1]), output)


def on_post_build(*, config: Any, **_: Any) -> None:
    sheet = Path(config["site_dir"]) / "stylesheets" / "drawn.css"
    sheet.parent.mkdir(parents=True, exist_ok=True)
    sheet.write_text(f".drawn {{\n{DRAWING_CSS}}}\n", encoding="utf-8")
