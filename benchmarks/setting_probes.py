"""Every numeric setting of every analysis at −1, 0, nan, inf and 1e9, from the command line and from Python.

    python benchmarks/setting_probes.py [--analyses a,b] [--surfaces shell,python] [--seconds 40]
    python benchmarks/setting_probes.py --smallest     one analysis at nan and 1e9

Each probe must end in one line that names a bound, or in an answer within 40 seconds. All probes run in this process, on one
text in the default model. The exit status is 1 if a probe fails.
"""

import io
import re
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from typing import Any, get_origin

from timing import make_parser

import rheoscope as rs
from rheoscope.catalogue import analysis_by_name, analysis_names
from rheoscope.commands.app import app
from rheoscope.commands.exit_status import run_to_status
from rheoscope.report.setting_options import typeable_options
from rheoscope.running.argument_checks import strip_none
from rheoscope.space.settings import Bounds, plain_type, rules

TEXT = "The keys to the cabinet are on the table near the old door, and the key to the door is in the cabinet"
VALUES = ("-1", "0", "nan", "inf", "1e9")
EXPECTED = re.compile(
    r"must|takes|not a valid|there is no|has \d+|needs|at least|is typed|expected|choose|tokens? \d+|no token"
)
"""Every refusal states what is expected."""
OK = ("answer", "refused")


@dataclass(frozen=True)
class Probe:
    """One value of one setting on one surface, and how it ended."""

    analysis: str
    setting: str
    value: str
    surface: str
    outcome: str
    seconds: float
    detail: str


def numeric_settings(analysis: str) -> list[str]:
    """The settings that admit a number."""
    settings = analysis_by_name(analysis).settings
    return [
        name for name, parameter in settings.items() if any(isinstance(r, Bounds) for r in rules(parameter.annotation))
    ]


def shell_probe(analysis: str, setting: str, value: str) -> tuple[str, str]:
    """The outcome of a command line: its kind and the printed line."""
    spec = analysis_by_name(analysis)
    arguments = ["analyse", analysis, *([TEXT] if spec.reads_text else []), f"--{setting.replace('_', '-')}={value}"]
    out, err = io.StringIO(), io.StringIO()
    try:
        with redirect_stdout(out), redirect_stderr(err):
            status = run_to_status(lambda: app(arguments, prog_name="rheoscope", standalone_mode=False))
    except Exception as error:
        return "fault", f"{type(error).__name__}: {error}"
    lines = err.getvalue().strip().splitlines()
    return judge(status, out.getvalue(), lines)


def judge(status: int, out: str, lines: list[str]) -> tuple[str, str]:
    """answer, refused, or what is wrong with a run."""
    if status == 0:
        return ("answer", "") if out.strip() else ("silent", "")
    if len(lines) != 1:
        return f"{len(lines)} lines", " / ".join(lines)
    return ("refused" if EXPECTED.search(lines[0]) else "no bound"), lines[0]


def python_probe(model: Any, analysis: str, setting: str, value: str) -> tuple[str, str]:
    """The outcome of a call from Python, with a list for a setting that takes several numbers."""
    spec = analysis_by_name(analysis)
    number = float(value) if value in ("nan", "inf", "1e9") else int(value)
    base_type = strip_none(plain_type(spec.settings[setting].annotation))[1]
    is_list = get_origin(base_type) is Sequence
    subjects = {"view": model.view, "model": model, "trace": model.trace(TEXT), "text": TEXT, "texts": TEXT}
    try:
        getattr(rs, analysis)(*(subjects[name] for name in spec.subjects), **{setting: [number] if is_list else number})
    except rs.RheoscopeError as error:
        return judge(1, "", str(error).splitlines())
    except Exception as error:
        return "fault", f"{type(error).__name__}: {error}"
    return "answer", ""


def probes(names: list[str], values: Sequence[str], surfaces: list[str], limit: float) -> Iterator[Probe]:
    """Run all probes."""
    model = rs.load()
    for analysis in names:
        typeable = typeable_options(analysis_by_name(analysis))
        for setting in numeric_settings(analysis):
            for value in values:
                runs: dict[str, Callable[[], tuple[str, str]]] = {
                    "python": lambda a=analysis, s=setting, v=value: python_probe(model, a, s, v)
                }
                if setting in typeable:
                    runs["shell"] = lambda a=analysis, s=setting, v=value: shell_probe(a, s, v)
                for surface in surfaces:
                    if surface in runs:
                        start = time.perf_counter()
                        outcome, detail = runs[surface]()
                        seconds = time.perf_counter() - start
                        outcome = "slow" if seconds > limit and outcome in OK else outcome
                        yield Probe(analysis, setting, value, surface, outcome, seconds, detail)


def main(arguments: list[str] | None = None) -> None:
    """Run the probes, print those that failed, and count the outcomes of each analysis."""
    parser = make_parser(__doc__)
    parser.add_argument("--analyses", default=",".join(analysis_names()))
    parser.add_argument("--surfaces", default="shell,python")
    parser.add_argument("--seconds", type=float, default=40.0, help="time allowed for one probe")
    parser.add_argument("--all", action="store_true", help="print every probe")
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    names, values = (["massive_tokens"], ("nan", "1e9")) if options.smallest else (options.analyses.split(","), VALUES)
    counts: dict[str, Counter[str]] = {}
    slowest: dict[str, float] = {}
    for probe in probes(names, values, options.surfaces.split(","), options.seconds):
        counts.setdefault(probe.analysis, Counter())[probe.outcome] += 1
        slowest[probe.analysis] = max(slowest.get(probe.analysis, 0.0), probe.seconds)
        if options.all or probe.outcome not in OK:
            print(
                f"{probe.outcome:9} {probe.surface:6} {probe.analysis} {probe.setting}={probe.value} "
                f"({probe.seconds:.1f} s) {probe.detail}",
                flush=True,
            )
    print(f"\n{'analysis':20} {'answer':>7} {'refused':>8} {'failed':>7} {'slowest, s':>11}")
    for name, outcomes in counts.items():
        failed = sum(count for outcome, count in outcomes.items() if outcome not in OK)
        print(f"{name:20} {outcomes['answer']:7} {outcomes['refused']:8} {failed:7} {slowest[name]:11.1f}")
    total = sum(counts.values(), Counter())
    n_failed = sum(count for outcome, count in total.items() if outcome not in OK)
    print(
        f"{total.total()} probes: {total['answer']} answers, {total['refused']} refused in one line, {n_failed} failed"
    )
    if n_failed:
        sys.exit(1)


if __name__ == "__main__":
    main()
