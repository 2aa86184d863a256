"""One shard, from its rows of input to its files: read, tokenise, compute, summarise, commit."""

import sys
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from rheoscope.corpus.batch_analyses import Asked, Question, asked, in_turn, joined, on_host, with_answer
from rheoscope.corpus.corpus_job import Job
from rheoscope.corpus.disk_space import Room
from rheoscope.corpus.input_texts import Input, Reader, Shard
from rheoscope.corpus.parquet_tables import tables
from rheoscope.corpus.segments import Piece, Reject, batches, cut
from rheoscope.corpus.shards import part
from rheoscope.corpus.summaries import columns, summary
from rheoscope.running.runner import Running
from rheoscope.shapes import RheoscopeError

if TYPE_CHECKING:
    import pyarrow

Cut = tuple[list[Piece], list[Reject]]
QUICK = 5e-4
"""Seconds after which threads take turns. The one that feeds a GPU often waits for it for a moment, and then for the others: Python's own
5 ms would be a GPU that stands still."""


@dataclass(frozen=True)
class Told:
    """What became of a shard."""

    shard: int
    texts: int
    tokens: int
    rejects: int


class Worker:
    """A model that works on shards. While one is computed, a thread reads and tokenises the next one, and another thread summarises and
    writes the one before.
    """

    def __init__(self, job: Job, folder: Path, model: Running) -> None:
        self.job, self.folder, self.model = job, folder, model
        self.reader, self.reading = Reader(job.column), ThreadPoolExecutor(1, "corpus-reader")
        self.writing = ThreadPoolExecutor(1, "corpus-writer")
        self.coming: dict[int, Future[Cut]] = {}
        self.inputs: list[Input] = []
        self.room, self.turns = Room(), sys.getswitchinterval()
        sys.setswitchinterval(QUICK)

    def close(self) -> None:
        """End the threads; what is being written is written to its end, if there is room."""
        self.room.close()
        self.reading.shutdown(cancel_futures=True)
        self.writing.shutdown()
        sys.setswitchinterval(self.turns)

    def work(self, inputs: list[Input], shard: Shard, then: Shard | None = None) -> "Future[Told]":
        """Compute a shard; its files are there when the future says so. `then` is the one that will come next."""
        self.inputs = inputs
        pieces, rejects = self._ahead(shard).result()
        self.coming = {then.number: self._ahead(then)} if then is not None else {}
        found, words = self._computed(pieces, rejects)
        return self.writing.submit(self._commit, shard, pieces, rejects, found, words)

    def _ahead(self, shard: Shard) -> "Future[Cut]":
        return self.coming.get(shard.number) or self.reading.submit(self._cut, shard)

    def _cut(self, shard: Shard) -> Cut:
        rows = self.reader.rows(self.inputs[shard.file].path, shard)
        return cut(self.model, shard.file, rows, self.job)

    @torch.no_grad()
    def _computed(self, pieces: Sequence[Piece], rejects: list[Reject]) -> tuple[dict[str, Asked], dict[int, str]]:
        """What every analysis says of every piece, and the pieces as text."""
        found: dict[str, list[Asked]] = {one.name: [] for one in self.job.questions}
        words: dict[int, str] = {}
        for batch in batches(pieces, self.job.batch):
            traces = self._traced(batch, rejects)
            if traces is None:
                continue
            some, seen = traces
            if any(question.of_clouds for question in self.job.questions):
                seen.ask_ahead()
            words |= {piece.text: "".join(tokens) for piece, tokens in zip(some, seen.tokens, strict=True)}
            for question in in_turn(self.job.questions):
                answer = asked(self.model, question, seen, some, self.job.tokens)
                if answer.texts:
                    found[question.name] = with_answer(found[question.name], answer)
                rejects += [
                    Reject(some[at].row, why, some[at].first, question.name) for at, why in answer.refused.items()
                ]
        return {name: joined(parts) for name, parts in found.items() if parts}, words

    def _traced(self, batch: list[Piece], rejects: list[Reject]) -> tuple[list[Piece], Any] | None:
        """The points of a batch; texts that the model refuses are left out, each by itself."""
        try:
            return batch, self.model.trace([piece.ids for piece in batch])
        except RheoscopeError as error:
            if len(batch) == 1:
                rejects.append(Reject(batch[0].row, str(error), batch[0].first))
                return None
        fine = [piece for piece in batch if self._traced([piece], rejects) is not None]
        return (fine, self.model.trace([piece.ids for piece in fine])) if fine else None

    def _commit(
        self,
        shard: Shard,
        pieces: Sequence[Piece],
        rejects: list[Reject],
        found: dict[str, Asked],
        words: dict[int, str],
    ) -> Told:
        """Every file of the shard; its summaries last, which say that it is done. Here the device is waited for."""
        found = {analysis: on_host(one) for analysis, one in found.items()}
        name, file = part(shard.number), self.inputs[shard.file].path
        for analysis, one in found.items():
            for axes, table in tables(one.texts, one.fields).items():
                self.room.write(self.folder / "rows" / f"{analysis}.{axes}" / name, table)
        told = [piece for piece in pieces if piece.text in words]
        self.room.write(self.folder / "texts" / name, _texts(file, told, words))
        self.room.write(self.folder / "rejects" / name, _rejects(file, rejects))
        told_of = Told(shard.number, len(told), sum(len(piece.ids) for piece in told), len(rejects))
        self.room.write(self.folder / "done" / name, summarised(found, self.job.questions, self.job.top, told_of))
        return told_of


def _texts(file: str, pieces: Sequence[Piece], words: dict[int, str]) -> "pyarrow.Table":
    """Every text with where it comes from: lines are counted from 1, as editors do."""
    import pyarrow as pa

    some = sorted(pieces, key=lambda piece: piece.text)
    return pa.table(
        {
            "text": pa.array([piece.text for piece in some], pa.int64()),
            "file": pa.array([file] * len(some), pa.string()),
            "line": pa.array([piece.row + 1 for piece in some], pa.int64()),
            "first_token": pa.array([piece.first for piece in some], pa.int64()),
            "tokens": pa.array([len(piece.ids) for piece in some], pa.int32()),
            "words": pa.array([words[piece.text] for piece in some], pa.string()),
        }
    )


def _rejects(file: str, rejects: Sequence[Reject]) -> "pyarrow.Table":
    """What could not be asked, and why."""
    import pyarrow as pa

    some = sorted(rejects, key=lambda one: (one.row, one.first, one.analysis, one.reason))
    return pa.table(
        {
            "file": pa.array([file] * len(some), pa.string()),
            "line": pa.array([one.row + 1 for one in some], pa.int64()),
            "first_token": pa.array([one.first for one in some], pa.int64()),
            "analysis": pa.array([one.analysis for one in some], pa.string()),
            "reason": pa.array([one.reason for one in some], pa.string()),
        }
    )


def summarised(found: dict[str, Asked], questions: Sequence[Question], top: int, told: Told) -> "pyarrow.Table":
    """The summaries of every field of a shard as one table, with how much it holds in its metadata."""
    import pyarrow as pa

    parts = []
    for question in questions:
        one = found.get(question.name)
        for name, cells in () if one is None else one.fields.items():
            assert one is not None
            numbers = cells.numbers(np.asarray(one.texts, np.int64))
            if numbers is not None:
                parts.append(labelled(columns(summary(numbers, top)), question.name, name, cells.kept, cells.shape))
    table = pa.concat_tables(parts) if parts else pa.table({})
    about = {"texts": told.texts, "tokens": told.tokens, "rejects": told.rejects}
    return table.replace_schema_metadata({name: str(count) for name, count in about.items()})


def labelled(
    told: dict[str, Any], analysis: str, field: str, dims: Sequence[str], shape: Sequence[int]
) -> "pyarrow.Table":
    """A summary with what it is of."""
    import pyarrow as pa

    rows = len(told["cell"])
    of = {"analysis": [analysis] * rows, "field": [field] * rows, "dims": [" ".join(dims)] * rows}
    sizes = pa.array([list(map(int, shape))] * rows, pa.list_(pa.int64()))
    return pa.table(of | {"shape": sizes} | told)
