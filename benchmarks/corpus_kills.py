"""Kill a corpus run at random moments between its first and its last shard, resume it, and compare every byte.

    python benchmarks/corpus_kills.py                   20 kills
    python benchmarks/corpus_kills.py --quick           5 kills
    python benchmarks/corpus_kills.py --smallest        1 kill of a short run, nothing is stored

The default model is loaded once. Every run is a fork of this process with one thread. SIGKILL ends it at a time drawn uniformly
between its first commit record and the time at which an undisturbed run has the last one. A run that ended before is not
counted. The killed run is resumed in another fork and compared with the undisturbed run, file by file.
"""

import os
import random
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.context import ForkProcess
from pathlib import Path
from statistics import median

import torch
from timing import make_parser, store_rows

import rheoscope as rs
from rheoscope.corpus.commit_records import finished_shards, record_path
from rheoscope.corpus.corpus_job import Job
from rheoscope.corpus.corpus_run import LocalEngine, run_job
from rheoscope.corpus.shard_worker import Worker
from rheoscope.running.runner import RunnableModel

TEXT = "the keys to the old cabinet are on a table in the hall and nobody has seen the king or his gold since then"
Run = Callable[[Path], object]


def write_texts(path: Path, rows: int) -> str:
    """Random texts of 20 to 60 words, one per line."""
    generator = random.Random(0)
    texts = [" ".join(generator.choices(TEXT.split(), k=generator.randint(20, 60))) for _ in range(rows)]
    path.write_text("".join(f"{text}\n" for text in texts))
    return str(path)


def runner(job: Job, model: RunnableModel) -> Run:
    """A function that starts or resumes the job in a folder."""

    @contextmanager
    def engine(job: Job, folder: Path) -> Iterator[LocalEngine]:
        worker = Worker(job, folder, model)
        try:
            yield LocalEngine(worker)
        finally:
            worker.close()

    return lambda folder: run_job(job, folder, engine)


def start(run: Run, folder: Path) -> ForkProcess:
    """A fork that runs the job in a folder."""
    process = get_context("fork").Process(target=run, args=(folder,))
    process.start()
    return process


def content(folder: Path) -> dict[str, bytes]:
    """All files of a run except its lock."""
    files = (file for file in sorted(folder.rglob("*")) if file.is_file() and file.name != ".lock")
    return {str(file.relative_to(folder)): file.read_bytes() for file in files}


def seconds_between_shards(folder: Path) -> float:
    """The time between the first and the last commit record of an undisturbed run."""
    times = [(folder / record_path(shard)).stat().st_mtime for shard in finished_shards(folder)]
    return max(times) - min(times)


def kill(run: Run, folder: Path, pause: float) -> int:
    """Kill a run some time after its first commit. Returns the number of its finished shards, or 0 if it had ended."""
    process = start(run, folder)
    while not finished_shards(folder) and process.is_alive():
        time.sleep(0.0005)
    time.sleep(pause)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    return len(finished_shards(folder)) if process.exitcode == -signal.SIGKILL else 0


def measure(run: Run, root: Path, kills: int) -> dict[str, object]:
    """Kill and resume as many runs, and count those with the bytes of an undisturbed run."""
    start(run, root / "undisturbed").join()
    expected, span = content(root / "undisturbed"), seconds_between_shards(root / "undisturbed")
    n_shards = len(finished_shards(root / "undisturbed"))
    generator, n_equal, finished = random.Random(0), 0, list[int]()
    while len(finished) < kills:
        with tempfile.TemporaryDirectory(dir=root) as name:
            folder = Path(name) / "run"
            n_finished = kill(run, folder, generator.uniform(0, span))
            if not 0 < n_finished < n_shards:
                continue
            finished.append(n_finished)
            start(run, folder).join()
            n_equal += content(folder) == expected
    row: dict[str, object] = {
        "kills": kills, "byte-equal": n_equal, "files": len(expected), "shards": n_shards, "shards at the kills": sorted(finished),
    }  # fmt: skip
    print(
        f"{n_equal} of {kills} killed runs are byte-equal after resuming ({len(expected)} files each); they had "
        f"{min(finished)} to {max(finished)} of {n_shards} shards when they were killed, the median is {median(finished):.0f}",
        flush=True,
    )
    return row


def main(argv: Sequence[str] | None = None) -> None:
    options = make_parser(__doc__).parse_args(argv)
    kills, rows = (1, 8) if options.smallest else (5, 100) if options.quick else (20, 100)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # a fork has one thread
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        job = Job(
            (write_texts(root / "texts.txt", rows),),
            analyses={"head_types": {}},
            length=64,
            shard=500 if options.smallest else 1500,
            top=3,
        )
        run = runner(job, rs.load())
        if not options.smallest:
            run(root / "warm up")  # imports happen here, not in every fork
        measured = measure(run, root, kills)
    torch.set_num_threads(threads)
    store_rows("corpus_kills", [measured], smallest=options.smallest)


if __name__ == "__main__":
    main()
