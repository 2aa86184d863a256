"""The picture and the output in the README, computed from the sample text of the Makefile.

    python examples/front_door.py        (or: make readme)

The picture (the cloud in six frames, light and dark) goes to docs/figures. The story of the text, as the terminal shows it, goes
between the markers of README.md.
"""

import re
from pathlib import Path

import rheoscope as rs
from rheoscope.files import write_file
from rheoscope.report.draw.sheet import picture_svg
from rheoscope.report.draw_result import picture_of
from rheoscope.report.style import DARK_COLOURS, LIGHT_COLOURS

ROOT = Path(__file__).resolve().parent.parent
MARKERS = "<!-- story -->", "<!-- /story -->"
COLUMNS = 108
"""Width of the terminal: a code block of the README shows as many characters."""
HEADING = "What happens to this text"


def sample() -> str:
    """The text that `make demo` analyses."""
    return re.findall(r'^SAMPLE := "(.*)"$', (ROOT / "Makefile").read_text(encoding="utf-8"), re.M)[0]


def story_text(text: str) -> str:
    """The story of a text, as the command prints it."""
    from typer.testing import CliRunner

    from rheoscope.commands.app import app

    result = CliRunner().invoke(app, ["flow", text, "--no-html"], env={"COLUMNS": str(COLUMNS), "NO_COLOR": "1"})
    if result.exit_code:
        raise SystemExit(result.output) from result.exception
    lines = result.stdout.split(HEADING, 1)[1].strip("\n").split("\n\n", 1)[0].splitlines()
    return "\n".join([HEADING, *(line.rstrip() for line in lines)])


def insert_story(page: str, text: str, story: str) -> str:
    """The page with this story between its markers."""
    (before, rest), (begin, end) = page.split(MARKERS[0], 1), MARKERS
    block = f'```text\n$ rheoscope "{text[:35]} … down the"\n{story}\n…\n```'
    return f"{before}{begin}\n{block}\n{end}{rest.split(end, 1)[1]}"


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    print(write_file(path, lambda temporary: temporary.write_text(text, encoding="utf-8")))


def main() -> None:
    model, text = rs.load(), sample()
    cloud = picture_of(rs.frames(model.trace(text)), token_strings=model.token_strings)
    for name, colours in (("light", LIGHT_COLOURS), ("dark", DARK_COLOURS)):
        write(ROOT / "docs" / "figures" / f"cloud-{name}.svg", picture_svg(cloud, colours))
    page = ROOT / "README.md"
    write(page, insert_story(page.read_text(encoding="utf-8"), text, story_text(text)))


if __name__ == "__main__":
    main()
