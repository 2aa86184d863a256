"""Shared by all benchmarks: the command line, interleaved timing, peak memory and stored results.

Methods are timed in turn in one process and compared by medians. On a shared machine, a difference below 10 % is noise. A ratio is
our speed divided by the peer's: above 1, we are faster. With `--smallest`, every benchmark runs all of its code within seconds on
any machine and stores nothing.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

RESULTS = Path(__file__).parent / "results"


def make_parser(description: str | None) -> argparse.ArgumentParser:
    """A parser with the options that all benchmarks share."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    effort = parser.add_mutually_exclusive_group()
    effort.add_argument("--quick", action="store_true", help="fewer rounds")
    effort.add_argument("--smallest", action="store_true", help="run all code within seconds and store nothing")
    return parser


def interleaved(
    methods: dict[str, Callable[[], object]],
    rounds: int = 15,
    warm: int = 2,
    clock: Callable[[], float] = time.perf_counter,
    before: Callable[[], object] = lambda: None,
) -> dict[str, list[float]]:
    """Seconds of each method in each round. Each round runs every method once. The first `warm` rounds are discarded.

    `before` runs before each method and is not timed.
    """
    seconds: dict[str, list[float]] = {name: [] for name in methods}
    for _ in range(warm + rounds):
        for name, run in methods.items():
            before()
            start = clock()
            run()
            seconds[name].append(clock() - start)
    return {name: times[warm:] for name, times in seconds.items()}


def ratio(seconds: dict[str, list[float]], ours: str, peer: str) -> tuple[float, float]:
    """The median over rounds of (peer's seconds / ours), and its noise: half the interquartile range."""
    pairs = [p / o for o, p in zip(seconds[ours], seconds[peer], strict=True)]
    low, middle, high = statistics.quantiles(pairs, n=4)
    return middle, (high - low) / 2


def peak_bytes(script: str, fresh: bool = True, returns_memory: bool = True) -> int:
    """Peak resident memory of the part of `script` below the line `# measured`, minus the memory in use at that line.

    The script runs in a fresh Python process. With `fresh=False` it runs in this process, which only shows that it works.
    `returns_memory` makes the allocator of C return freed memory to the system.
    """
    before, measured = script.split("# measured\n")
    collect = "gc.collect()" if fresh else ""  # slow in a process with many objects
    code = (
        "def memory(field):\n"
        "    with open('/proc/self/status') as file:\n"
        "        return next(int(line.split()[1]) * 1024 for line in file if line.startswith(field))\n"
        f"{before}\nimport ctypes, gc\n{collect}\nctypes.CDLL('libc.so.6').malloc_trim(0)\n"
        "with open('/proc/self/clear_refs', 'w') as file:\n    file.write('5')\n"  # reset the peak
        f"ready = memory('VmRSS')\n{measured}\npeak = memory('VmHWM') - ready\n"
    )
    if not fresh:
        namespace: dict[str, int] = {}
        exec(code, namespace)
        return namespace["peak"]
    folder = Path(__file__).parent
    malloc_settings = {
        "MALLOC_MMAP_THRESHOLD_": "65536",
        "MALLOC_TRIM_THRESHOLD_": "65536",
    }  # return freed memory to the system
    command, env = (
        [sys.executable, "-c", f"{code}print('PEAK', peak)"],
        os.environ | (malloc_settings if returns_memory else {}),
    )
    out = subprocess.run(command, capture_output=True, text=True, check=True, cwd=folder, env=env).stdout
    return int(out.rsplit("PEAK", 1)[1])


def model_and_text(parser: argparse.ArgumentParser, argv: Sequence[str] | None) -> tuple[argparse.Namespace, str, str]:
    """The options, the model directory and the text. With `--smallest`: the default model and one sentence."""
    parser.add_argument("model", nargs="?", metavar="MODEL_DIRECTORY")
    parser.add_argument("text", nargs="?", type=Path, metavar="TEXT_FILE")
    options = parser.parse_args(argv)
    if options.smallest:
        from rheoscope.opening import DEFAULT_MODEL

        return options, str(DEFAULT_MODEL), "The keys to the cabinet are on the table in the hall. "
    if options.text is None:
        parser.error("MODEL_DIRECTORY and TEXT_FILE are required; or type --smallest")
    return options, options.model, options.text.read_text()


def store_rows(name: str, rows: list[dict[str, object]], smallest: bool) -> None:
    """Store the rows and a description of the machine, unless `smallest`."""
    import torch

    if smallest:
        print(f"{len(rows)} rows, not stored")
        return
    RESULTS.mkdir(exist_ok=True)
    machine = {"torch": torch.__version__, "threads": torch.get_num_threads(), "machine": platform.machine()}
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps({"machine": machine, "rows": rows}, indent=1) + "\n")
    print("stored", path)
