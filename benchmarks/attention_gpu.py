"""Speed, error, memory and lowering of every mechanism on a GPU, compared with torch's fused attention.

    python benchmarks/attention_gpu.py            everything on one GPU, about five minutes
    python benchmarks/attention_gpu.py --quick    fewer rounds (--smallest: seconds on any machine, nothing is stored)

The setting is bfloat16, causal where masks are allowed, 16 heads of width 64, and 2k, 8k and 32k tokens (8, 2 and 1 texts). Speeds
are relative to cuDNN's kernel in the same rounds (+- half the interquartile range). Errors are relative to that kernel's own error
against float64. The output is a Markdown table and results/attention_gpu.json. `rheoscope bench attention` prints the same table.
"""

import json
import sys
from collections.abc import Sequence
from dataclasses import replace

from timing import RESULTS, make_parser

from rheoscope.attention.speed import CPU_SETTING, GPU_SETTING, benchmark_mechanisms, run_benchmark
from rheoscope.report.speed_report import DEFAULT_LENGTHS, markdown_table, row_texts, speed_to_json, table_title


def main(argv: Sequence[str] | None = None) -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--tokens", type=int, nargs="+", default=DEFAULT_LENGTHS["cuda"], help="lengths of the texts")
    parser.add_argument("--only", nargs="+", metavar="MECHANISM", help="only these; nothing is stored")
    options = parser.parse_args(argv)
    full_setting = replace(GPU_SETTING, limit=600.0)
    setting = (
        replace(CPU_SETTING, rounds=1, seconds=0.01, exact=8, heads=2, width=16) if options.smallest else full_setting
    )
    setting = replace(setting, rounds=5, seconds=0.2) if options.quick else setting
    mechanisms, rows = benchmark_mechanisms(setting.heads, setting.width), []
    selected = {name: mechanisms[name] for name in options.only or mechanisms}
    for row in run_benchmark(setting, (8,) if options.smallest else options.tokens, selected):
        rows.append(row)
        print(*row_texts(row), sep=" · ", file=sys.stderr, flush=True)
    print(f"{table_title(setting)}\n\n{markdown_table(rows)}")
    if not options.smallest and not options.only:
        path = RESULTS / "attention_gpu.json"
        path.write_text(json.dumps(speed_to_json(rows, setting), indent=1, default=str) + "\n")
        print("stored", path)


if __name__ == "__main__":
    main()
