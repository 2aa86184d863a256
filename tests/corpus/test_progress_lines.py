"""Without a terminal, a corpus run prints lines while a shard is computed, not only when it ends."""

import io
import threading

import pytest
from rich.console import Console

from rheoscope.corpus import corpus_report
from rheoscope.corpus.corpus_run import CorpusProgress
from rheoscope.report import progress_bars


class Output(io.StringIO):
    """A stream that reports when a text is written to it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text, self.is_written = text, threading.Event()

    def write(self, text: str) -> int:
        if self.text in text:
            self.is_written.set()
        return super().write(text)


@pytest.mark.parametrize(
    ("reports", "line"),
    [
        ([], "rheoscope: opening the corpus (0 s)"),
        ([CorpusProgress(2, 8, 40, 12_000, 3, 4.0)], "rheoscope: 12,000 tokens, 3,000 tokens/s, 3 rejects 25 % (0 s)"),
    ],
)
def test_a_pipe_shows_lines_between_shards(
    reports: list[CorpusProgress], line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = Output(line)
    monkeypatch.setattr(progress_bars, "LINE_INTERVAL", 0.001)
    for module in (progress_bars, corpus_report):
        monkeypatch.setattr(module, "console", lambda stderr: Console(file=output, width=200))
    with corpus_report._progress_bar() as on_progress:
        for report in reports:
            on_progress(report)
        assert output.is_written.wait(60)


def test_the_interval_is_ten_seconds() -> None:
    assert progress_bars.LINE_INTERVAL <= 10
