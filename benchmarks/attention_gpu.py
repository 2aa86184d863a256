"""Every mechanism beside torch's fused dot-product attention on a GPU: speed, error, memory, and the kernel it takes.

    python benchmarks/attention_gpu.py            all of it on one GPU, about five minutes
    python benchmarks/attention_gpu.py --quick    fewer rounds (--smallest: seconds on any machine, nothing stored)

bfloat16, causal where masks are allowed, 16 heads of width 64, 2k, 8k and 32k tokens (8, 2 and 1 texts). Prints a Markdown
table (speed of ours / speed of cuDNN's kernel in the same rounds, +- half the interquartile range; error against float64 as a
multiple of that kernel's own) and stores results/attention_gpu.json. `rheoscope bench attention` is the same, as a table.
"""

import json
import sys
from collections.abc import Sequence
from dataclasses import replace

from timing import RESULTS, arguments

from rheoscope.attention.speed import CPU_SETTING, GPU_SETTING, benchmark_mechanisms, run_benchmark
from rheoscope.report.speed_report import DEFAULT_LENGTHS, markdown_table, row_texts, speed_to_json, table_title


def main(words: Sequence[str] | None = None) -> None:
    parser = arguments(__doc__)
    parser.add_argument("--tokens", type=int, nargs="+", default=DEFAULT_LENGTHS["cuda"], help="lengths")
    parser.add_argument("--only", nargs="+", metavar="MECHANISM", help="some of them; nothing is stored")
    asked = parser.parse_args(words)
    whole = replace(GPU_SETTING, limit=600.0)
    setting = replace(CPU_SETTING, rounds=1, seconds=0.01, exact=8, heads=2, width=16) if asked.smallest else whole
    setting = replace(setting, rounds=5, seconds=0.2) if asked.quick else setting
    every, rows = benchmark_mechanisms(setting.heads, setting.width), []
    some = {name: every[name] for name in asked.only or every}
    for row in run_benchmark(setting, (8,) if asked.smallest else asked.tokens, some):
        rows.append(row)
        print(*row_texts(row), sep=" · ", file=sys.stderr, flush=True)
    print(f"{table_title(setting)}\n\n{markdown_table(rows)}")
    if not asked.smallest and not asked.only:
        path = RESULTS / "attention_gpu.json"
        path.write_text(json.dumps(speed_to_json(rows, setting), indent=1, default=str) + "\n")
        print("stored", path)


if __name__ == "__main__":
    main()
