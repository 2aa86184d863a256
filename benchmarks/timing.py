"""How every benchmark measures: methods interleaved in one process, medians, noise stated, JSON kept.

On a shared machine a gap under 10 % is noise. Ratios are speed of ours over speed of the peer: above 1 we are faster.
"""

import json
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

RESULTS = Path(__file__).parent / "results"


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


def peak_bytes(script: str) -> int:
    """Peak resident memory of a fresh Python while it runs what `script` has below a line `# measured`, above what it held there."""
    before, measured = script.split("# measured\n")
    code = (
        "def held(field):\n"
        "    with open('/proc/self/status') as file:\n"
        "        return next(int(line.split()[1]) * 1024 for line in file if line.startswith(field))\n"
        f"{before}\nimport ctypes, gc\ngc.collect()\nctypes.CDLL('libc.so.6').malloc_trim(0)\nwith open('/proc/self/clear_refs', 'w') as file:\n    file.write('5')\n"  # forget the peak until here
        f"ready = held('VmRSS')\n{measured}\nprint('PEAK', held('VmHWM') - ready)\n"
    )
    here = Path(__file__).parent
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=here).stdout
    return int(out.rsplit("PEAK", 1)[1])


def keep(name: str, rows: list[dict[str, object]]) -> Path:
    """Store the rows with the machine they were measured on."""
    import torch

    RESULTS.mkdir(exist_ok=True)
    machine = {"torch": torch.__version__, "threads": torch.get_num_threads(), "machine": platform.machine()}
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps({"machine": machine, "rows": rows}, indent=1) + "\n")
    return path
