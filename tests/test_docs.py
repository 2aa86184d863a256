"""Every Python block of README, CONTRIBUTING and docs/ runs. The blocks of a page share a namespace."""

import doctest
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = ["README.md", "CONTRIBUTING.md", *sorted(str(page.relative_to(ROOT)) for page in ROOT.glob("docs/**/*.md"))]
FENCE = re.compile(r"^( *)```\s*(?:python|py|pycon)\b[^\n]*\n(.*?)^\1```\s*$", re.M | re.S)


def blocks(text: str) -> list[tuple[int, str]]:
    """The Python blocks of a page as (line of the fence, code without indentation)."""
    return [
        (text.count("\n", 0, fence.start()) + 1, re.sub(rf"^{fence[1]}", "", fence[2], flags=re.M))
        for fence in FENCE.finditer(text)
    ]


def run_page(page: Path) -> dict[str, Any]:
    """Run the blocks of a page. An error has the line number of the page."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for line, code in blocks(page.read_text(encoding="utf-8")):
        if code.lstrip().startswith(">>>"):
            run_session(code, namespace, page, line)
        else:
            exec(compile("\n" * line + code, str(page), "exec"), namespace)
    return namespace


def run_session(code: str, namespace: dict[str, Any], page: Path, line: int) -> None:
    session = doctest.DocTestParser().get_doctest(code, namespace, page.name, str(page), line)
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    report: list[str] = []
    runner.run(session, out=report.append, clear_globs=False)
    namespace.update(session.globs)
    assert not report, "".join(report)


@pytest.mark.parametrize("page", PAGES)
def test_page(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run_page(ROOT / page)


@pytest.mark.parametrize("page", PAGES)
def test_pages_name_the_checkpoint_of_smollm2(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    assert "SmolLM2" not in text or ("4-bit" in text and "Instruct" in text)


def write_page(tmp_path: Path, text: str) -> Path:
    page = tmp_path / "page.md"
    page.write_text(text, encoding="utf-8")
    return page


def test_blocks_share_a_namespace(tmp_path: Path) -> None:
    plain, indented, other = "```python\nx = 1\n```\n", "    ```python\n    y = x + 1\n    ```\n", "```sh\nfalse\n```\n"
    assert run_page(write_page(tmp_path, f"Text\n{plain}\n- item\n{indented}\n{other}"))["y"] == 2


def test_a_wrong_block_fails(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        run_page(write_page(tmp_path, "```python\n1 / 0\n```\n"))


def test_a_wrong_session_fails(tmp_path: Path) -> None:
    run_page(write_page(tmp_path, "```python\n>>> 1 + 1\n2\n```\n"))
    with pytest.raises(AssertionError, match="Expected"):
        run_page(write_page(tmp_path, "```python\n>>> 1 + 1\n3\n```\n"))
