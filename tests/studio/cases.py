"""A studio on a small model, asked in this process."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages
from typing import Any

import torch
from starlette.testclient import TestClient

import rheoscope as rs
from rheoscope import covers, flow, report
from rheoscope.corpus.corpus_job import Job
from rheoscope.corpus.corpus_run import LocalEngine, run_job
from rheoscope.corpus.shard_worker import Worker
from rheoscope.models.transformer import Transformer
from rheoscope.studio.corpus import LiveCorpusRun
from rheoscope.studio.model_sources import ModelSources
from rheoscope.studio.safety import AccessRules
from rheoscope.studio.server import create_app
from rheoscope.studio.session import Limits, Session
from rheoscope.studio.stored_example import StoredExample
from tests.report.cases import small

TEXT = "The keys to the cabinet are on the table."
HERE = "http://127.0.0.1"


def loading(source: str | None, untrained: bool = False, progress: Any = None, **how: Any) -> Any:
    """What the server calls to open a model: the small one, whatever the name; another where an untrained one is asked for."""
    progress(1, 1)
    return other() if untrained else small()


@cache
def other() -> Any:
    torch.manual_seed(1)
    return rs.load(Transformer(replace(small().network.config, depth=1)), tokenizer=small().tokenizer)


@cache
def everything_is_imported() -> None:
    """Here and now: Python 3.11 cannot parse in two threads at once, and under test every first import is parsed anew."""
    for room in (covers, flow, report):
        for module in walk_packages(room.__path__, f"{room.__name__}."):
            if ".kernels." not in module.name:  # for a GPU, which the server of a test has not
                import_module(module.name)


@contextmanager
def running(
    load: Any = loading,
    sources: ModelSources = ModelSources(),
    stored: StoredExample | None = None,
    rules: AccessRules = AccessRules(),
    run: LiveCorpusRun | None = None,
    **limits: Any,
) -> Iterator[tuple[Session, TestClient]]:
    everything_is_imported()
    session = Session(load, sources, Limits(n_controls=0, **limits))
    try:
        yield (
            session,
            TestClient(
                create_app(session, rules, stored_example=stored, corpus_run=run),
                base_url=HERE,
                raise_server_exceptions=False,
            ),
        )
    finally:
        session.close()


def posted(client: TestClient, text: str = TEXT, **more: Any) -> str:
    """A text whose questions are left unasked."""
    answer = client.post("/api/traces", json={"text": text, "questions": []} | more)
    assert answer.status_code == 200, answer.text
    return answer.json()["id"]


def told(stream: str) -> list[tuple[str, str]]:
    """The events of a stream, with their data."""
    blocks = [block.split("\n") for block in stream.strip().split("\n\n") if not block.startswith(":")]
    return [(lines[0].removeprefix("event: "), lines[1].removeprefix("data: ")) for lines in blocks]


def ran(folder: Path, texts: Sequence[str] = (TEXT, TEXT[4:], TEXT[9:]), **more: Any) -> LiveCorpusRun:
    """A corpus run by the small model, as the studio shows it."""

    @contextmanager
    def engine(job: Job, folder: Path) -> Iterator[LocalEngine]:
        worker = Worker(job, folder, small())
        try:
            yield LocalEngine(worker)
        finally:
            worker.close()

    folder.parent.mkdir(exist_ok=True)
    source = folder.with_suffix(".txt")
    source.write_text("\n".join(texts), encoding="utf-8")
    analyses: dict[str, Any] = {"head_types": {}, "head_statistics": {}, "reversed_attention": {}}
    usual: dict[str, Any] = {"analyses": analyses, "least": 4, "length": 64, "top": 2}
    run_job(Job((str(source),), **usual | more), folder, engine)
    return LiveCorpusRun(folder, "default")


class Gate:
    """A model that opens when it is told to."""

    def __init__(self) -> None:
        self.opens = threading.Event()

    def __call__(self, source: str | None, untrained: bool = False, progress: Any = None, **how: Any) -> Any:
        self.opens.wait(20)
        return small()


def one_line(answer: Any, *status: int) -> str:
    """The reason of a refusal, which is one line of JSON."""
    assert answer.status_code in status, (answer.status_code, answer.text)
    reason = answer.json()["error"]
    assert reason
    assert "\n" not in reason
    assert "Traceback" not in reason
    return reason


__all__ = ["Gate", "HERE", "Path", "TEXT", "loading", "one_line", "posted", "ran", "running", "small", "told"]
