"""What the README and the first page of the documentation show of Rheoscope, made anew from the sample text of the Makefile.

    python examples/front_door.py        (or: make readme)

The picture (the cloud in six frames, light and dark) goes to docs/figures; the seven verdicts, as the terminal shows them, go
between the marks of README.md and docs/index.md.
"""

import re
from pathlib import Path

import rheoscope as rs
from rheoscope.files import write_file
from rheoscope.report import question_blocks
from rheoscope.report.draw.sheet import picture_svg
from rheoscope.report.draw_result import picture_of
from rheoscope.report.style import DARK_COLOURS, LIGHT_COLOURS

ROOT = Path(__file__).resolve().parent.parent
MARKS = "<!-- verdicts -->", "<!-- /verdicts -->"
PAGES = {"README.md": 108, "docs/index.md": 80}
"""Columns of the terminal that is shown: as many as a code block has there."""


def sample() -> str:
    """The text that `make demo` asks about."""
    return re.findall(r'^SAMPLE := "(.*)"$', (ROOT / "Makefile").read_text(encoding="utf-8"), re.M)[0]


def verdicts(text: str, columns: int) -> str:
    """The seven questions and their answers, cut out of what the command prints."""
    from typer.testing import CliRunner

    from rheoscope.commands.app import app

    ran = CliRunner().invoke(app, ["flow", text, "--no-html"], env={"COLUMNS": str(columns), "NO_COLOR": "1"})
    if ran.exit_code:
        raise SystemExit(ran.output)
    told = ran.stdout.split(question_blocks.HEADING, 1)[1].split("Untrained:", 1)[0]
    return "\n".join(line.rstrip() for line in told.strip().splitlines())


def between_marks(page: str, text: str, told: str) -> str:
    """A page whose verdicts are these."""
    (before, rest), (begin, end) = page.split(MARKS[0], 1), MARKS
    block = f'```text\n$ rheoscope "{text[:35]} … down the"\n{told}\n```'
    return f"{before}{begin}\n{block}\n{end}{rest.split(end, 1)[1]}"


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    print(write_file(path, lambda temporary: temporary.write_text(text, encoding="utf-8")))


def main() -> None:
    model, text = rs.load(), sample()
    cloud = picture_of(rs.frames(model.trace(text)), token_strings=model.token_strings)
    for name, colours in (("light", LIGHT_COLOURS), ("dark", DARK_COLOURS)):
        write(ROOT / "docs" / "figures" / f"cloud-{name}.svg", picture_svg(cloud, colours))
    for page, columns in PAGES.items():
        before = (ROOT / page).read_text(encoding="utf-8")
        write(ROOT / page, between_marks(before, text, verdicts(text, columns)))


if __name__ == "__main__":
    main()
