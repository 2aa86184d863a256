"""Does noise get an answer? Every sentence that the program can say, on texts and models that have nothing to say.

    python benchmarks/calibration.py                 200 texts, about half an hour
    python benchmarks/calibration.py --workers 16    the same, 16 texts at a time
    python benchmarks/calibration.py --texts 40      fewer (--smallest: seconds, nothing stored)

Texts are random ids, distinct ids and the shuffled ids of real prose, in untrained models of four shapes, each text in weights of
its own beside untrained controls of other seeds; and walks without structure in the place of points. Prints, for every statement,
how often its p is below .05 and how often it is told; and how many texts got anything at all (allowed: 7 of 100). Stores
results/calibration.json.
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
from rheoscope.report.findings import CANDIDATES, FAMILY_SIZE
from rheoscope.report.report_settings import report_request
from rheoscope.report.verdicts import QUESTIONS
from rheoscope.space.results import Results
from rheoscope.statistics.statement import SIGNIFICANCE_LEVEL, Statement, correct_for_family

PROSE = (
    "The library of the old town kept letters that nobody had opened for a hundred years. One morning a teacher asked to read "
    "them, and the keeper of the letters, who had waited for such a question all his life, unlocked the cabinet and left the room."
)
SEEDS = 5
"""Untrained models of a text: one is asked, the others are its controls."""
ANALYSES = (
    "readout", "transport", "energy", "clusters", "purity", "distortion", "agreement", "trajectory", "geometry_kept",
    "massive_tokens", "operators", "stack",
)  # fmt: skip


@dataclass(frozen=True)
class Size:
    texts: int = 200
    tokens: int = 96
    first: int = 0
    workers: int = 1


SHAPES = ("the model that ships", "gpt2", "llama, grouped keys", "neox, parallel")
"""One's own, learned positions, rotary with grouped keys, parallel blocks."""


def untrained(shape: str, seed: int) -> Any:
    """A model of one of four shapes at initial weights."""
    import transformers as tr

    if shape == SHAPES[0]:
        return rs.load(untrained=True, seed=seed)
    torch.manual_seed(seed)
    small: dict[str, Any] = {"vocab_size": 4096, "hidden_size": 64, "num_hidden_layers": 4, "intermediate_size": 160}
    made = {
        "gpt2": lambda: tr.GPT2LMHeadModel(tr.GPT2Config(n_layer=4, n_head=4, n_embd=64, vocab_size=4096)),
        "llama, grouped keys": lambda: tr.LlamaForCausalLM(
            tr.LlamaConfig(**small, num_attention_heads=8, num_key_value_heads=2)
        ),
        "neox, parallel": lambda: tr.GPTNeoXForCausalLM(tr.GPTNeoXConfig(**small, num_attention_heads=4)),
    }
    tokenizer = tr.PreTrainedTokenizerFast(tokenizer_object=rs.load().tokenizer)
    return rs.load(made[shape](), tokenizer=tokenizer)


def noise(kind: str, tokens: int, seed: int) -> list[int]:
    """A text that says nothing."""
    draw = torch.Generator().manual_seed(seed)
    if kind == "random":
        return torch.randint(300, 4000, (tokens,), generator=draw).tolist()
    if kind == "distinct":
        return (300 + torch.randperm(3700, generator=draw)[:tokens]).tolist()
    real = rs.load().trace(PROSE).ids
    return real[torch.randperm(len(real), generator=draw)].tolist()


def answered(model: Any, ids: list[int], controls: list[Any], walk: int | None = None) -> Results:
    """What a run asks, of a text of ids; with `walk`, of points that walk at random from where the text starts."""
    trace = model.trace(ids)
    if walk is not None:
        steps = torch.randn(trace.points.shape, generator=torch.Generator().manual_seed(walk))
        trace = replace(trace, points=steps.cumsum(0).to(trace.points))
    beside = [partial(lambda control: Subject(control, ids, control.trace(ids)), control) for control in controls]
    return run_analyses(Subject(model, ids, trace), [report_request(name) for name in ANALYSES], controls=beside)


def statements(answers: Results) -> "Iterator[Statement]":
    """Everything that could be said, sure or not."""
    for question in QUESTIONS:
        if answers.has(*question.needs):
            yield from question.verdict(answers).statements
    yield from correct_for_family(
        [one for candidate in CANDIDATES if (one := candidate(answers)) is not None], FAMILY_SIZE
    )


OF_POINTS = ("trajectory", "transport", "clusters", "purity")
"""What a walk is asked: the rest rests on weights that did not make it."""


def said_of(shape: str, kind: str, tokens: int, seed: int) -> list[Statement]:
    """Everything that could be said of one text of noise in one untrained model, beside others of its shape."""
    own, *others = (SEEDS * seed + further for further in range(SEEDS))
    controls = [] if kind == "walk" else [untrained(shape, other) for other in others]  # no architecture makes a walk
    ids = noise("random" if kind == "walk" else kind, tokens, seed)
    said = list(statements(answered(untrained(shape, own), ids, controls, seed if kind == "walk" else None)))
    return [one for one in said if kind != "walk" or one.analysis in OF_POINTS]


KINDS = ("random", "distinct", "shuffled", "walk")


def runs(size: Size) -> "Iterator[tuple[str, list[Statement]]]":
    """Every text with what could be said of it: all shapes, all kinds, one seed after the other."""
    texts = range(size.first, size.first + size.texts)
    if size.workers == 1:
        yield from (run(at, size.tokens) for at in texts)
        return
    with ProcessPoolExecutor(size.workers, get_context("spawn"), torch.set_num_threads, (1,)) as pool:
        yield from pool.map(partial(run, tokens=size.tokens), texts)


def run(at: int, tokens: int) -> tuple[str, list[Statement]]:
    """One text: where it is from, and what could be said of it."""
    shape, kind = SHAPES[at % len(SHAPES)], KINDS[at // len(SHAPES) % len(KINDS)]
    return f"{shape}, {kind}", said_of(shape, kind, tokens, at)


def measured(size: Size) -> dict[str, Any]:
    """How often each statement is below .05, how often it is told, and how many texts got any."""
    below, told, asked_of, any_told = Counter[str](), Counter[str](), Counter[str](), defaultdict[str, list[bool]](list)
    for place, said in runs(size):
        seen = Counter[str]()
        for one in said:
            seen[one.analysis] += 1
            name = f"{one.analysis} {seen[one.analysis]}"
            asked_of[name] += one.p == one.p
            below[name] += one.p * one.tries <= SIGNIFICANCE_LEVEL
            told[name] += one.is_significant
        any_told[place].append(any(one.is_significant for one in said))
        sure = [
            f"{one.analysis} {one.value:.3g}, null {one.null:.3g}, p {one.p:.1g}" for one in said if one.is_significant
        ]
        print(f"{place}: {'; '.join(sure) or 'nothing'}", flush=True)
    texts = [one for each in any_told.values() for one in each]
    rows = {name: {"asked": asked_of[name], "below": below[name], "told": told[name]} for name in sorted(asked_of)}
    by = {place: sum(each) for place, each in any_told.items()}
    return {"texts": len(texts), "texts_told_anything": sum(texts), "statements": rows, "by": by}


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=int, default=Size.texts)
    parser.add_argument("--workers", type=int, default=1, help="processes, one thread each")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument("--smallest", action="store_true", help="seconds: shows that it runs, stores nothing")
    options = parser.parse_args(words)
    found = measured(Size(1, 24, first=13) if options.smallest else Size(options.texts, workers=options.workers))
    for name, row in found["statements"].items():
        print(f"{name:24} {row['asked']:4} asked  {row['below']:3} with p <= .05  {row['told']:3} told")
    print(f"{found['texts_told_anything']} of {found['texts']} texts of noise were told anything: {found['by']}")
    if not options.smallest:
        (options.out / "calibration.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
