"""Every test sends one report, and no failure is left out."""

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


class ReportCounter:
    """Counts the reports that a worker would send."""

    def __init__(self) -> None:
        self.reports: Counter[tuple[str, str, str]] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.reports[report.nodeid.split("::test_")[1], report.when or "", report.outcome] += 1


def test_failures_are_reported_and_passed_tests_once(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]")
    (tmp_path / "test_some.py").write_text(TESTS)
    counter = ReportCounter()
    # two of these plugins scan all objects at the end
    unneeded = ("cacheprovider", "jaxtyping", "unraisableexception", "threadexception")
    arguments = [str(tmp_path), f"--rootdir={tmp_path}", "-q", "-s", *(f"-pno:{plugin}" for plugin in unneeded)]
    assert pytest.main(arguments, plugins=[Outcomes(), counter]) == pytest.ExitCode.TESTS_FAILED
    assert counter.reports == Counter(
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
