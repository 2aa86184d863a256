"""How every benchmark measures: methods interleaved in one process, medians, noise stated, JSON kept.

On a shared machine a gap under 10 % is noise. Ratios are speed of ours over speed of the peer: above 1 we are faster.
Every benchmark has a smallest form, `--smallest`: all that it does, in seconds on any machine, and nothing is stored.
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


def arguments(about: str | None) -> argparse.ArgumentParser:
    """What every benchmark understands; what one needs besides is added to it."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    effort = parser.add_mutually_exclusive_group()
    effort.add_argument("--quick", action="store_true", help="fewer rounds")
    effort.add_argument(
        "--smallest", action="store_true", help="seconds: shows that it runs, measures and stores nothing"
    )
    return parser


def interleaved(methods: dict[str, Callable[[], object]], rounds: int = 15, warm: int = 2) -> dict[str, list[float]]:
    """Seconds of each method, one round of all after another; the first `warm` rounds are thrown away."""
    seconds: dict[str, list[float]] = {name: [] for name in methods}
    for _ in range(warm + rounds):
        for name, run in methods.items():
            start = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - start)
    return {name: times[warm:] for name, times in seconds.items()}


def ratio(seconds: dict[str, list[float]], ours: str, peer: str) -> tuple[float, float]:
    """Median over rounds of peer/ours within the round, and its noise: half the interquartile range."""
    pairs = [p / o for o, p in zip(seconds[ours], seconds[peer], strict=True)]
    low, middle, high = statistics.quantiles(pairs, n=4)
    return middle, (high - low) / 2


def peak_bytes(script: str, fresh: bool = True) -> int:
    """Peak resident memory of a fresh Python while it runs what `script` has below a line `# measured`, above what it held there.

    Where it need not be fresh it is this one, which says nothing of the peak but that the script runs.
    """
    before, measured = script.split("# measured\n")
    collect = "gc.collect()" if fresh else ""  # a process that has done much else takes long to
    code = (
        "def held(field):\n"
        "    with open('/proc/self/status') as file:\n"
        "        return next(int(line.split()[1]) * 1024 for line in file if line.startswith(field))\n"
        f"{before}\nimport ctypes, gc\n{collect}\nctypes.CDLL('libc.so.6').malloc_trim(0)\n"
        "with open('/proc/self/clear_refs', 'w') as file:\n    file.write('5')\n"  # forget the peak until here
        f"ready = held('VmRSS')\n{measured}\npeak = held('VmHWM') - ready\n"
    )
    if not fresh:
        made: dict[str, int] = {}
        exec(code, made)
        return made["peak"]
    here = Path(__file__).parent
    given_back = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}  # what is freed is not held
    command, env = [sys.executable, "-c", f"{code}print('PEAK', peak)"], os.environ | given_back
    out = subprocess.run(command, capture_output=True, text=True, check=True, cwd=here, env=env).stdout
    return int(out.rsplit("PEAK", 1)[1])


def model_and_text(parser: argparse.ArgumentParser, words: Sequence[str] | None) -> tuple[argparse.Namespace, str, str]:
    """What is asked for, with a MODEL_DIRECTORY and what a TEXT_FILE says; smallest is the default model on a sentence."""
    parser.add_argument("model", nargs="?", metavar="MODEL_DIRECTORY")
    parser.add_argument("text", nargs="?", type=Path, metavar="TEXT_FILE")
    asked = parser.parse_args(words)
    if asked.smallest:
        from rheoscope.opening import DEFAULT_MODEL

        return asked, str(DEFAULT_MODEL), "The keys to the cabinet are on the table in the hall. "
    if asked.text is None:
        parser.error("type the directory of a model and a file of text")
    return asked, asked.model, asked.text.read_text()


def keep(name: str, rows: list[dict[str, object]], smallest: bool) -> None:
    """Store the rows with the machine they were measured on; the smallest form measured nothing."""
    import torch

    if smallest:
        print(f"{len(rows)} rows, nothing is stored")
        return
    RESULTS.mkdir(exist_ok=True)
    machine = {"torch": torch.__version__, "threads": torch.get_num_threads(), "machine": platform.machine()}
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps({"machine": machine, "rows": rows}, indent=1) + "\n")
    print("stored", path)
