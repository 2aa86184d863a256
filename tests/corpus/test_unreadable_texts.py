"""Texts that cannot be read end in an error: a wrong column, and a run without a single text. Touched inputs are not changed ones."""

import json
import os
from pathlib import Path

import pytest

from rheoscope.corpus import corpus_run
from rheoscope.corpus.input_texts import MAX_COLUMN_ROWS, plan_shards
from rheoscope.shapes import RheoscopeError
from tests.commands.cases import run_rheoscope
from tests.corpus.cases import content, job, lines, text_file, tiny_model

pytest.importorskip("pyarrow")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tiny_model(tmp_path_factory.mktemp("model"))


def test_a_wrong_column_of_json_lists_the_columns(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text(
        "\n{broken\n" + "".join(json.dumps({"id": 3, "body": text, "url": "x"}) + "\n" for text in lines(3))
    )
    with pytest.raises(RheoscopeError, match="has no column 'text'; its columns are body, url, id; type column='body'"):
        plan_shards([str(file)], "text", 100)
    assert plan_shards([str(file)], "body", 10**6)[0][0].rows == 5


@pytest.mark.parametrize(
    "rows", [[{"other": 1}, {"text": "some"}], ["a text alone", {"other": 1}], [{"other": 1}] * 999 + [{"text": None}]]
)
def test_a_column_that_occurs_once_is_accepted(rows: list[object], tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert len(rows) <= MAX_COLUMN_ROWS
    assert plan_shards([str(file)], "text", 10**6)[0][0].rows == len(rows)


@pytest.mark.parametrize(
    ("text", "pattern"),
    [
        ("abc\nde\n", "no text could be read, with 2 rejects; the most frequent reason (2 ×) is: fewer than 16 tokens"),
        ("\n \n", "no text could be read: all rows of the input are blank"),
    ],
)
def test_a_run_without_texts_has_exit_status_1(text: str, pattern: str, model: str, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(text)
    arguments = ["--model", model, "--analyses", "head_types", "--length", "32", "--texts", str(tmp_path / "a.txt")]
    outcome = run_rheoscope("corpus", "run", *arguments, "--out", str(tmp_path / "run"))
    assert (outcome.status, outcome.out) == (1, "")
    assert outcome.err.startswith(f"rheoscope: {pattern}")
    assert outcome.err.count("\n") == 1


def test_a_touched_input_leaves_every_byte_and_a_changed_one_is_refused(model: str, tmp_path: Path) -> None:
    file = Path(text_file(tmp_path / "texts.txt", lines(4)))
    base_job = job(model, str(file), analyses={"head_types": {}})
    corpus_run.run_job(base_job, tmp_path / "run")
    before, times = content(tmp_path / "run"), file.stat()
    os.utime(file, (1, 1))
    corpus_run.run_job(base_job, tmp_path / "run")
    assert content(tmp_path / "run") == before
    file.write_text(file.read_text()[::-1].strip() + "\n")  # the same size and, below, the same time
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    with pytest.raises(RheoscopeError, match="its input files have changed"):
        corpus_run.resume(tmp_path / "run")
