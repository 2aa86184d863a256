"""A worker tells of a test what came of it, and no more.

pytest-xdist sends six messages for each test (it begins, is set up, has run, is torn down, ends, the next one), which takes more
than many a test does, in the worker and in the process that hears them. One says all there is to say of a test that passed.
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
