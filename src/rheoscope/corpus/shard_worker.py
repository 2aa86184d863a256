"""The work on one shard: read, tokenise, compute, summarise and write."""

import sys
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from rheoscope.corpus.batch_analyses import (
    BatchResult,
    Request,
    append_result,
    merge_results,
    order_for_gpu,
    run_request,
    to_host,
)
from rheoscope.corpus.commit_records import ShardRecord, record_path
from rheoscope.corpus.corpus_job import Job
from rheoscope.corpus.disk_space import RetryingWriter
from rheoscope.corpus.input_texts import Input, Reader, Shard
from rheoscope.corpus.parquet_tables import build_tables
from rheoscope.corpus.segments import Reject, Segment, batches, cut_segments
from rheoscope.corpus.shards import SUMMARIES, part_file_name
from rheoscope.corpus.summaries import summarise, to_columns
from rheoscope.running.runner import RunnableModel
from rheoscope.shapes import RheoscopeError

if TYPE_CHECKING:
    import pyarrow

SegmentsAndRejects = tuple[list[Segment], list[Reject]]
SWITCH_INTERVAL = 5e-4
"""Seconds between thread switches.

Python's default of 5 ms would leave the GPU idle while the thread that feeds it waits for its turn.
"""


class Worker:
    """A model that processes shards.

    While one shard is computed, one thread reads and tokenises the next and another writes the previous one.
    """

    def __init__(self, job: Job, folder: Path, model: RunnableModel) -> None:
        self.job, self.folder, self.model = job, folder, model
        self.reader, self.reader_pool = Reader(job.column), ThreadPoolExecutor(1, "corpus-reader")
        self.writer_pool = ThreadPoolExecutor(1, "corpus-writer")
        self.prefetched: dict[int, Future[SegmentsAndRejects]] = {}
        self.inputs: list[Input] = []
        self.writer, self.old_switch_interval = RetryingWriter(folder), sys.getswitchinterval()
        sys.setswitchinterval(SWITCH_INTERVAL)

    def close(self) -> None:
        """End the threads. A pending write is completed if there is disk space."""
        self.writer.close()
        self.reader_pool.shutdown(cancel_futures=True)
        self.writer_pool.shutdown()
        sys.setswitchinterval(self.old_switch_interval)

    def work(self, inputs: list[Input], shard: Shard, next_shard: Shard | None = None) -> "Future[ShardRecord]":
        """Compute a shard. The future completes when its files are written. `next_shard` is read ahead."""
        self.inputs = inputs
        segments, rejects = self._prefetch(shard).result()
        self.prefetched = {next_shard.number: self._prefetch(next_shard)} if next_shard is not None else {}
        results, segment_texts = self._compute(segments, rejects)
        return self.writer_pool.submit(self._commit, shard, segments, rejects, results, segment_texts)

    def _prefetch(self, shard: Shard) -> "Future[SegmentsAndRejects]":
        return self.prefetched.get(shard.number) or self.reader_pool.submit(self._read_segments, shard)

    def _read_segments(self, shard: Shard) -> SegmentsAndRejects:
        rows = self.reader.read_rows(self.inputs[shard.file].path, shard)
        return cut_segments(self.model, shard.file, rows, self.job)

    @torch.no_grad()
    def _compute(
        self, segments: Sequence[Segment], rejects: list[Reject]
    ) -> tuple[dict[str, BatchResult], dict[int, str]]:
        """The results of every analysis for every segment, and the texts of the segments."""
        results: dict[str, list[BatchResult]] = {request.name: [] for request in self.job.requests}
        segment_texts: dict[int, str] = {}
        for batch in batches(segments, self.job.batch):
            traced = self._trace_batch(batch, rejects)
            if traced is None:
                continue
            batch_segments, traces = traced
            if any(request.needs_massive_tokens for request in self.job.requests):
                traces.prefetch()
            segment_texts |= {
                segment.text_id: "".join(tokens) for segment, tokens in zip(batch_segments, traces.tokens, strict=True)
            }
            for request in order_for_gpu(self.job.requests):
                result = run_request(self.model, request, traces, batch_segments, self.job.tokens)
                if result.texts:
                    results[request.name] = append_result(results[request.name], result)
                rejects += [
                    Reject(batch_segments[index].row, reason, batch_segments[index].first_token, request.name)
                    for index, reason in result.rejections.items()
                ]
        return {name: merge_results(parts) for name, parts in results.items() if parts}, segment_texts

    def _trace_batch(self, batch: list[Segment], rejects: list[Reject]) -> tuple[list[Segment], Any] | None:
        """The traces of a batch, without the texts that the model rejects."""
        try:
            return batch, self.model.trace([segment.ids for segment in batch])
        except RheoscopeError as error:
            if len(batch) == 1:
                rejects.append(Reject(batch[0].row, error.message, batch[0].first_token))
                return None
        accepted = [segment for segment in batch if self._trace_batch([segment], rejects) is not None]
        return (accepted, self.model.trace([segment.ids for segment in accepted])) if accepted else None

    def _commit(
        self,
        shard: Shard,
        segments: Sequence[Segment],
        rejects: list[Reject],
        results: dict[str, BatchResult],
        segment_texts: dict[int, str],
    ) -> ShardRecord:
        """Write all files of the shard, its commit record last, because it marks the shard as finished.

        Synchronises with the device.
        """
        results = {analysis: to_host(result) for analysis, result in results.items()}
        name, file = part_file_name(shard.number), self.inputs[shard.file].path
        written_segments = [segment for segment in segments if segment.text_id in segment_texts]
        tables = {
            f"rows/{analysis}.{axes}": table
            for analysis, result in results.items()
            for axes, table in build_tables(result.texts, result.fields).items()
        }
        tables["texts"] = _texts_table(file, written_segments, segment_texts)
        tables["rejects"] = _rejects_table(file, rejects)
        tables[SUMMARIES] = summary_table(results, self.job.requests, self.job.top)
        files = tuple(self.writer.write_table(f"{table}/{name}", data) for table, data in tables.items())
        n_tokens = sum(len(segment.ids) for segment in written_segments)
        record = ShardRecord(shard.number, len(written_segments), n_tokens, len(rejects), files)
        self.writer.write_text(record_path(shard.number), record.to_json())
        return record


def _texts_table(file: str, segments: Sequence[Segment], segment_texts: dict[int, str]) -> "pyarrow.Table":
    """Every text with its origin. Lines are counted from 1, as in editors."""
    import pyarrow as pa

    ordered = sorted(segments, key=lambda segment: segment.text_id)
    return pa.table(
        {
            "text": pa.array([segment.text_id for segment in ordered], pa.int64()),
            "file": pa.array([file] * len(ordered), pa.string()),
            "line": pa.array([segment.row + 1 for segment in ordered], pa.int64()),
            "first_token": pa.array([segment.first_token for segment in ordered], pa.int64()),
            "tokens": pa.array([len(segment.ids) for segment in ordered], pa.int32()),
            "words": pa.array([segment_texts[segment.text_id] for segment in ordered], pa.string()),
        }
    )


def _rejects_table(file: str, rejects: Sequence[Reject]) -> "pyarrow.Table":
    """All rejects with their reasons."""
    import pyarrow as pa

    ordered = sorted(rejects, key=lambda reject: (reject.row, reject.first_token, reject.analysis, reject.reason))
    return pa.table(
        {
            "file": pa.array([file] * len(ordered), pa.string()),
            "line": pa.array([reject.row + 1 for reject in ordered], pa.int64()),
            "first_token": pa.array([reject.first_token for reject in ordered], pa.int64()),
            "analysis": pa.array([reject.analysis for reject in ordered], pa.string()),
            "reason": pa.array([reject.reason for reject in ordered], pa.string()),
        }
    )


def summary_table(results: dict[str, BatchResult], requests: Sequence[Request], top: int) -> "pyarrow.Table":
    """The summaries of all fields of a shard as one table."""
    import pyarrow as pa

    parts = []
    for request in requests:
        result = results.get(request.name)
        for name, cells in () if result is None else result.fields.items():
            assert result is not None
            field_values = cells.to_field_values(np.asarray(result.texts, np.int64))
            if field_values is not None:
                parts.append(
                    label_summary(
                        to_columns(summarise(field_values, top)), request.name, name, cells.cell_dims, cells.shape
                    )
                )
    return pa.concat_tables(parts) if parts else pa.table({})


def label_summary(
    data: dict[str, Any], analysis: str, field: str, dims: Sequence[str], shape: Sequence[int]
) -> "pyarrow.Table":
    """A summary with its analysis, field and axes."""
    import pyarrow as pa

    n_rows = len(data["cell"])
    labels = {"analysis": [analysis] * n_rows, "field": [field] * n_rows, "dims": [" ".join(dims)] * n_rows}
    sizes = pa.array([list(map(int, shape))] * n_rows, pa.list_(pa.int64()))
    return pa.table(labels | {"shape": sizes} | data)
