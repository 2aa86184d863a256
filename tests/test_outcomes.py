"""Of every test one thing is told, and nothing that went wrong is left out."""

from collections import Counter
from pathlib import Path

import pytest

from tests.outcomes import Outcomes

TESTS = """
import pytest

@pytest.fixture
def unready(): raise ValueError
@pytest.fixture
def untidy():
    yield
    raise ValueError

def test_right(): pass
def test_wrong(): assert 0
def test_unready(unready): pass
def test_untidy(untidy): pass
def test_wrong_and_untidy(untidy): assert 0
def test_skipped(): pytest.skip()
@pytest.mark.skip
def test_marked(): pass
@pytest.mark.xfail
def test_expected(): assert 0
"""


class Heard:
    """What a worker would send."""

    def __init__(self) -> None:
        self.reports: Counter[tuple[str, str, str]] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.reports[report.nodeid.split("::test_")[1], report.when or "", report.outcome] += 1


def test_what_went_wrong_is_told_and_what_passed_once(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]")
    (tmp_path / "test_some.py").write_text(TESTS)
    heard = Heard()
    needless = (
        "cacheprovider",
        "jaxtyping",
        "unraisableexception",
        "threadexception",
    )  # two look at all objects at the end
    words = [str(tmp_path), f"--rootdir={tmp_path}", "-q", "-s", *(f"-pno:{one}" for one in needless)]
    assert pytest.main(words, plugins=[Outcomes(), heard]) == pytest.ExitCode.TESTS_FAILED
    assert heard.reports == Counter(
        [
            ("right", "call", "passed"),
            ("wrong", "call", "failed"),
            ("unready", "setup", "failed"),
            ("untidy", "call", "passed"),
            ("untidy", "teardown", "failed"),
            ("wrong_and_untidy", "call", "failed"),
            ("wrong_and_untidy", "teardown", "failed"),
            ("skipped", "call", "skipped"),
            ("marked", "setup", "skipped"),
            ("expected", "call", "skipped"),
        ]
    )
