"""False positive rate of all findings: random texts in untrained models should produce none.

    python benchmarks/findings_calibration.py                 200 texts, about half an hour
    python benchmarks/findings_calibration.py --workers 16    the same, 16 texts at a time
    python benchmarks/findings_calibration.py --texts 40      fewer texts (--smallest: seconds, nothing is stored)

Texts are random token ids, distinct ids and shuffled ids of real prose, in untrained models of four architectures. Each text has its
own weights. A fourth kind replaces the points by random walks. For every finding, the output has how often p is below .05 and how
often it would be reported. It also has the number of texts with any reported finding (allowed: 7 of 100). Results are stored in
results/findings_calibration.json.
"""

import argparse
import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

import rheoscope as rs
from rheoscope.report.analysis_runs import Subject, run_analyses
from rheoscope.report.findings import CANDIDATES, FAMILY_SIZE, analyses_with_findings
from rheoscope.report.report_settings import report_request
from rheoscope.space.results import Results
from rheoscope.statistics.statement import SIGNIFICANCE_LEVEL, Statement, correct_for_family

PROSE = (
    "The library of the old town kept letters that nobody had opened for a hundred years. One morning a teacher asked to read "
    "them, and the keeper of the letters, who had waited for such a question all his life, unlocked the cabinet and left the room."
)


@dataclass(frozen=True)
class Size:
    texts: int = 200
    tokens: int = 96
    first: int = 0
    workers: int = 1


SHAPES = ("the model that ships", "gpt2", "llama, grouped keys", "neox, parallel")
"""The default architecture, learned positions, rotary with grouped keys, and parallel blocks."""


def untrained_model(shape: str, seed: int) -> Any:
    """A model of one of four architectures with initial weights."""
    import transformers as tr

    if shape == SHAPES[0]:
        return rs.load(untrained=True, seed=seed)
    torch.manual_seed(seed)
    small: dict[str, Any] = {"vocab_size": 4096, "hidden_size": 64, "num_hidden_layers": 4, "intermediate_size": 160}
    networks = {
        "gpt2": lambda: tr.GPT2LMHeadModel(tr.GPT2Config(n_layer=4, n_head=4, n_embd=64, vocab_size=4096)),
        "llama, grouped keys": lambda: tr.LlamaForCausalLM(
            tr.LlamaConfig(**small, num_attention_heads=8, num_key_value_heads=2)
        ),
        "neox, parallel": lambda: tr.GPTNeoXForCausalLM(tr.GPTNeoXConfig(**small, num_attention_heads=4)),
    }
    tokenizer = tr.PreTrainedTokenizerFast(tokenizer_object=rs.load().tokenizer)
    return rs.load(networks[shape](), tokenizer=tokenizer)


def random_text(kind: str, tokens: int, seed: int) -> list[int]:
    """The token ids of a text without structure."""
    draw = torch.Generator().manual_seed(seed)
    if kind == "random":
        return torch.randint(300, 4000, (tokens,), generator=draw).tolist()
    if kind == "distinct":
        return (300 + torch.randperm(3700, generator=draw)[:tokens]).tolist()
    real = rs.load().trace(PROSE).ids
    return real[torch.randperm(len(real), generator=draw)][:tokens].tolist()


def analyse(model: Any, ids: list[int], walk: int | None = None) -> Results:
    """The results of all analyses with findings. With the seed `walk`, random walks replace the points of the text."""
    trace = model.trace(ids)
    if walk is not None:
        steps = torch.randn(trace.points.shape, generator=torch.Generator().manual_seed(walk))
        trace = replace(trace, points=steps.cumsum(0).to(trace.points))
    return run_analyses(Subject(model, ids, trace), [report_request(name) for name in analyses_with_findings()])


def statements(results: Results) -> list[Statement]:
    """Every candidate statement, significant or not."""
    candidates = [statement for candidate in CANDIDATES if (statement := candidate(results)) is not None]
    return correct_for_family(candidates, FAMILY_SIZE)


POINT_ANALYSES = ("trajectory", "transport")
"""The analyses of a random walk. The others depend on weights, which did not produce the walk."""


def candidate_statements(shape: str, kind: str, tokens: int, seed: int) -> list[Statement]:
    """All candidate statements about one random text in an untrained model."""
    ids = random_text("random" if kind == "walk" else kind, tokens, seed)
    candidates = statements(analyse(untrained_model(shape, seed), ids, seed if kind == "walk" else None))
    return [statement for statement in candidates if kind != "walk" or statement.analysis in POINT_ANALYSES]


KINDS = ("random", "distinct", "shuffled", "walk")


def runs(size: Size) -> "Iterator[tuple[str, list[Statement]]]":
    """The group and the candidate statements of every text, over all architectures and kinds of texts."""
    texts = range(size.first, size.first + size.texts)
    if size.workers == 1:
        yield from (run(index, size.tokens) for index in texts)
        return
    with ProcessPoolExecutor(size.workers, get_context("spawn"), torch.set_num_threads, (1,)) as pool:
        yield from pool.map(partial(run, tokens=size.tokens), texts)


def run(index: int, tokens: int) -> tuple[str, list[Statement]]:
    """The group (architecture and kind) and the candidate statements of one text."""
    shape, kind = SHAPES[index % len(SHAPES)], KINDS[index // len(SHAPES) % len(KINDS)]
    return f"{shape}, {kind}", candidate_statements(shape, kind, tokens, index)


def measure(size: Size) -> dict[str, Any]:
    """How often each statement has p ≤ .05, how often it is reported, and how many texts have a reported statement."""
    n_tests, n_below, n_reported = Counter[str](), Counter[str](), Counter[str]()
    has_report = defaultdict[str, list[bool]](list)
    for group, candidates in runs(size):
        seen = Counter[str]()
        significant = [statement for statement in candidates if statement.is_significant]
        for statement in candidates:
            seen[statement.analysis] += 1
            name = f"{statement.analysis} {seen[statement.analysis]}"
            n_tests[name] += statement.p == statement.p
            n_below[name] += statement.p * statement.tries <= SIGNIFICANCE_LEVEL
            n_reported[name] += statement.is_significant
        has_report[group].append(bool(significant))
        texts = [f"{entry.analysis} {entry.value:.3g}, null {entry.null:.3g}, p {entry.p:.1g}" for entry in significant]
        print(f"{group}: {'; '.join(texts) or 'nothing'}", flush=True)
    rows = {
        name: {"tests": n_tests[name], "below": n_below[name], "reported": n_reported[name]} for name in sorted(n_tests)
    }
    by_group = {group: sum(flags) for group, flags in has_report.items()}
    n_texts = sum(map(len, has_report.values()))
    return {"texts": n_texts, "texts_with_a_report": sum(by_group.values()), "statements": rows, "by": by_group}


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=int, default=Size.texts)
    parser.add_argument("--workers", type=int, default=1, help="processes, one thread each")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument("--smallest", action="store_true", help="run all code within seconds and store nothing")
    options = parser.parse_args(argv)
    result = measure(Size(1, 24, first=13) if options.smallest else Size(options.texts, workers=options.workers))
    for name, row in result["statements"].items():
        print(f"{name:24} {row['tests']:4} tests  {row['below']:3} with p <= .05  {row['reported']:3} reported")
    n_reported, n_texts = result["texts_with_a_report"], result["texts"]
    print(f"{n_reported} of {n_texts} random texts have a reported statement: {result['by']}")
    if not options.smallest:
        (options.out / "findings_calibration.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
