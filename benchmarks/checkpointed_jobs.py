"""Jobs in processes of one thread each, with a file of finished jobs, so that an interrupted benchmark resumes."""

import json
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

Result = dict[str, Any]
Work = Callable[..., Result]


@dataclass(frozen=True)
class Checkpoint:
    """Where finished jobs are stored, and how many processes run the others. Without a file nothing is stored."""

    file: Path | None = None
    workers: int = 1

    def finish(self, work: Work, jobs: Mapping[str, tuple[Any, ...]]) -> dict[str, Result]:
        """The result of `work(*arguments)` for every job, by its name. Jobs of earlier runs are read from the file."""
        stored = self._stored()
        results = {name: stored[name] for name in jobs if name in stored}
        missing = {name: arguments for name, arguments in jobs.items() if name not in results}
        start, n_stored = time.perf_counter(), len(results)
        for name, result in self._run(work, missing):
            results[name] = result
            self._append(name, result)
            seconds = (time.perf_counter() - start) / (len(results) - n_stored)
            print(f"{len(results)} of {len(jobs)}: {name} ({seconds:.1f} s per job)", flush=True)
        return {name: results[name] for name in jobs}

    def _run(self, work: Work, jobs: Mapping[str, tuple[Any, ...]]) -> Iterator[tuple[str, Result]]:
        if self.workers == 1:
            yield from ((name, work(*arguments)) for name, arguments in jobs.items())
            return
        with ProcessPoolExecutor(self.workers, get_context("spawn"), torch.set_num_threads, (1,)) as pool:
            names = {pool.submit(work, *arguments): name for name, arguments in jobs.items()}
            for future in as_completed(names):
                yield names[future], future.result()

    def _stored(self) -> dict[str, Result]:
        """The finished jobs. An interruption may leave an incomplete last line, which is removed."""
        if self.file is None or not self.file.is_file():
            return {}
        text = self.file.read_text()
        complete_lines = text[: text.rfind("\n") + 1]
        if complete_lines != text:
            self.file.write_text(complete_lines)
        return {entry["job"]: entry["result"] for entry in map(json.loads, complete_lines.splitlines())}

    def _append(self, name: str, result: Result) -> None:
        if self.file is None:
            return
        self.file.parent.mkdir(parents=True, exist_ok=True)
        with self.file.open("a") as file:
            file.write(json.dumps({"job": name, "result": result}) + "\n")
