"""A plugin for pytest-xdist workers that sends one message per test.

pytest-xdist sends six messages per test (start, setup, call, teardown, end, next test), which takes longer than many tests, in
the worker and in the main process. One message is enough for a test that passed.
"""

import pytest
from _pytest.runner import runtestprotocol


class Outcomes:
    """The plugin of a worker."""

    @staticmethod
    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool:
        for report in runtestprotocol(item, log=False, nextitem=nextitem):
            if report.when == "call" or not report.passed:
                item.ihook.pytest_runtest_logreport(report=report)
        return True
