"""A studio with a small model that runs in the process of the test, and helpers to call it."""

import re
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
from rheoscope.messages.catalogue import templates
from rheoscope.messages.message import Message
from rheoscope.models.transformer import Transformer
from rheoscope.studio.corpus import LiveCorpusRun
from rheoscope.studio.model_sources import ModelSources
from rheoscope.studio.safety import AccessRules
from rheoscope.studio.server import create_app
from rheoscope.studio.session import Limits, Session
from rheoscope.studio.stored_example import StoredExample
from rheoscope.studio.training_runs import TrainingRuns
from tests.report.cases import small

TEXT = "The keys to the cabinet are on the table."
BASE_URL = "http://127.0.0.1"


def load_small(source: str | None, untrained: bool = False, progress: Any = None, **options: Any) -> Any:
    """A stand-in for `rs.load`: the small model for every name, and a smaller one as its untrained control."""
    progress(1, 1)
    return untrained_model() if untrained else small()


@cache
def untrained_model() -> Any:
    torch.manual_seed(1)
    return rs.load(Transformer(replace(small().network.config, depth=1)), tokenizer=small().tokenizer)


@cache
def import_all_modules() -> None:
    """Import everything before threads start: with the jaxtyping import hook, Python 3.11 cannot parse in two threads."""
    for room in (covers, flow, report):
        for module in walk_packages(room.__path__, f"{room.__name__}."):
            if ".kernels." not in module.name:  # these need a GPU
                import_module(module.name)


@contextmanager
def running_studio(
    load: Any = load_small,
    sources: ModelSources = ModelSources(),
    stored_example: StoredExample | None = None,
    rules: AccessRules = AccessRules(),
    corpus_run: LiveCorpusRun | None = None,
    training_runs: TrainingRuns | None = None,
    **limits: Any,
) -> Iterator[tuple[Session, TestClient]]:
    import_all_modules()
    session = Session(load, sources, Limits(**limits))
    try:
        app = create_app(
            session, rules, stored_example=stored_example, corpus_run=corpus_run, training_runs=training_runs
        )
        with TestClient(app, base_url=BASE_URL, raise_server_exceptions=False) as client:  # one event loop for all
            yield session, client
    finally:
        session.close()


def post_text(client: TestClient, text: str = TEXT, **fields: Any) -> str:
    """Post a text without its story and return the id of its trace."""
    response = client.post("/api/traces", json={"text": text, "lines": []} | fields)
    assert response.status_code == 200, response.text
    return response.json()["id"]


def parse_events(stream: str) -> list[tuple[str, str]]:
    """The events of a stream as pairs of name and data."""
    blocks = [block.split("\n") for block in stream.strip().split("\n\n") if not block.startswith(":")]
    return [(lines[0].removeprefix("event: "), lines[1].removeprefix("data: ")) for lines in blocks]


def run_corpus(folder: Path, texts: Sequence[str] = (TEXT, TEXT[4:], TEXT[9:]), **settings: Any) -> LiveCorpusRun:
    """A finished corpus run of the small model."""

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
    defaults: dict[str, Any] = {"analyses": analyses, "least": 4, "length": 64, "top": 2}
    run_job(Job((str(source),), **defaults | settings), folder, engine)
    return LiveCorpusRun(folder, "default")


class GatedLoader:
    """A loader that returns the model after `gate` is set."""

    def __init__(self) -> None:
        self.gate = threading.Event()

    def __call__(self, source: str | None, untrained: bool = False, progress: Any = None, **options: Any) -> Any:
        self.gate.wait(20)
        return small()


def render_text(text: Any) -> str:
    """A text of the wire in English: a plain string, a command, or a template with parameters."""
    if isinstance(text, dict) and "command" in text:
        return str(text["command"])
    if isinstance(text, dict):
        parameters = {
            name: render_text(part) if isinstance(part, dict) else part for name, part in text["parameters"].items()
        }
        return str(Message(text["template"], **parameters))
    return str(text)


TEXT_KEYS = frozenset(
    (
        "about",
        "caption",
        "definition",
        "error",
        "held",
        "label",
        "question",
        "reason",
        "sentence",
        "title",
        "unit",
    )
)
"""Keys of the wire whose values are text for people. A message without parameters is a plain string there."""


def message_templates(value: Any, key: str = "") -> Iterator[str]:
    """The templates of all messages in a value of the wire."""
    if isinstance(value, dict):
        is_message = set(value) == {"template", "parameters"}
        if is_message:
            yield value["template"]
        for name, part in (value["parameters"] if is_message else value).items():
            yield from message_templates(part, name)
    elif isinstance(value, list):
        for part in value:
            yield from message_templates(part, key)
    elif isinstance(value, str) and key in TEXT_KEYS:
        yield value


def untranslated_templates(value: Any) -> set[str]:
    """Templates in a value of the wire without a Chinese translation. Formulas and names need none."""
    return {template for template in message_templates(value) if has_words(template)} - set(templates("zh"))


def has_words(template: str) -> bool:
    """Whether a template contains words outside its parameters. Without parameters, one word may be a name."""
    words = re.sub(r"\{[^{}]*\}", "", template)
    return re.search(r"[A-Za-z]{2,}" if words != template else r"[A-Za-z]{2,} [a-z]{2,}", words) is not None


def error_line(response: Any, *statuses: int) -> str:
    """The error of a refused request, which must be one line of text."""
    assert response.status_code in statuses, (response.status_code, response.text)
    line = render_text(response.json()["error"])
    assert line
    assert "\n" not in line
    assert "Traceback" not in line
    return line


__all__ = [
    "BASE_URL",
    "TEXT",
    "GatedLoader",
    "error_line",
    "import_all_modules",
    "load_small",
    "message_templates",
    "parse_events",
    "post_text",
    "render_text",
    "run_corpus",
    "running_studio",
    "small",
    "untranslated_templates",
]
