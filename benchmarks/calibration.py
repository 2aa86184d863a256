"""Calibration of the answers of a card: random models, planted effects, coverage of the intervals, and other seeds.

    python benchmarks/calibration.py --workers 16             all parts
    python benchmarks/calibration.py --part a --workers 16    one part; an interrupted run continues with the same command
    python benchmarks/calibration.py --part b --claims rest   one claim (--smallest: seconds, nothing is stored)
    python benchmarks/calibration.py --part d --claims erasure symmetry    other seeds for some claims, seed 0 for the others

a  200 tiny models at random weights, five architectures, random texts: at most 16 cards have a *yes* or a *reversed*
b  planted models: an effect of twice the smallest effect of interest is a *yes* in at least 90 % of 40 draws, and no effect a *no*
   in at least 80 %. A loss of relatedness of twice the smallest effect is a *no*. The strengths of planted effects are those of the
   stored results; --search finds them again
c  the default model, resampled texts and null draws: each 95 % interval covers in 93 to 97 % of samples, and all simultaneous
   intervals together in at least 93 %
d  ten other seeds change no answer of the default model

Finished jobs are stored in OUT/calibration.jsonl, measurements of the default model in OUT/calibration_cache, and the summary in
OUT/calibration.json. By default OUT is benchmarks/results.
"""

import argparse
import json
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

from checkpointed_jobs import Checkpoint, Result
from planted_cards import planted_effects
from resampled_cards import other_seeds, resampled_coverage
from timing import RESULTS
from tiny_cards import (
    SHAPES,
    Size,
    chosen_claims,
    clear_answers,
    control_means,
    mean_effects,
    measure_claims,
    printed_answers,
    random_model,
    random_texts,
    row_numbers,
)

from rheoscope.report.card import answer_claims

MODELS_PER_GROUP = 10
"""Models of part a that share texts and untrained models."""
FIRST_TESTED_SEED = 10_000
"""Seeds of the models under test. Those of untrained models are below."""
MAX_CLEAR_CARDS = 0.08
"""16 of 200: the 98 % point of the number of cards at a rate of 5 %."""


# Part a: random models


def control_job(shape: str, group: int, number: int, size: Size) -> Result:
    """The mean effects of an untrained model over the texts of its group."""
    claims = [claim for claim in chosen_claims(size.claims) if claim.random_models == "untrained"]
    model = random_model(shape, group * size.untrained + number)
    return {"means": mean_effects(measure_claims(model, group_texts(shape, group, size), claims, 0, 0)[0])}


def group_texts(shape: str, group: int, size: Size) -> list[list[int]]:
    return random_texts(size.n_texts, size.n_tokens, seed=1000 * SHAPES.index(shape) + group)


def card_job(shape: str, group: int, number: int, controls: list[dict[str, float]], size: Size) -> Result:
    """The card of one random model, whose null draws have a seed of their own."""
    seed = FIRST_TESTED_SEED + group * MODELS_PER_GROUP + number
    texts = group_texts(shape, group, size)
    measured, refused = measure_claims(random_model(shape, seed), texts, chosen_claims(size.claims), size.draws, seed)
    rows = answer_claims(measured, control_means(controls))
    return {"shape": shape, "answers": printed_answers(rows), "refused": refused, "numbers": row_numbers(rows)}


def random_cards(size: Size, checkpoint: Checkpoint, _: Path | None) -> Result:
    """Part a: how many cards of random models have a clear answer."""
    groups = [(shape, group) for shape in size.shapes for group in range(-(-size.models // MODELS_PER_GROUP))]
    control_jobs = {
        f"a, untrained {shape} {group}.{number}, {size.label}": (shape, group, number, size)
        for shape, group in groups
        for number in range(size.untrained)
    }
    means = checkpoint.finish(control_job, control_jobs)
    controls = {
        key: [
            means[f"a, untrained {key[0]} {key[1]}.{number}, {size.label}"]["means"] for number in range(size.untrained)
        ]
        for key in groups
    }
    card_jobs = {
        f"a, {shape} {group}.{number}, {size.label}": (shape, group, number, controls[shape, group], size)
        for shape, group in groups
        for number in range(min(MODELS_PER_GROUP, size.models - group * MODELS_PER_GROUP))
    }
    return summarise_cards(checkpoint.finish(card_job, card_jobs))


def summarise_cards(cards: Mapping[str, Result]) -> Result:
    clear = {name: clear_answers(card["answers"]) for name, card in cards.items()}
    n_clear = sum(map(bool, clear.values()))
    return {
        "cards": len(cards),
        "clear_cards": n_clear,
        "is_allowed": n_clear <= MAX_CLEAR_CARDS * len(cards),
        "by_shape": dict(Counter(card["shape"] for name, card in cards.items() if clear[name])),
        "by_claim": dict(
            Counter(f"{claim} {answer}" for answers in clear.values() for claim, answer in answers.items())
        ),
        "answers": dict(Counter(answer for card in cards.values() for answer in card["answers"].values())),
        "refused": dict(Counter(name for card in cards.values() for name in card["refused"])),
    }


# The command line

Part = Callable[[Size, Checkpoint, Path | None], Result]
PARTS: dict[str, Part] = {"a": random_cards, "b": planted_effects, "c": resampled_coverage, "d": other_seeds}


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=sorted(PARTS), nargs="+", default=sorted(PARTS))
    parser.add_argument("--workers", type=int, default=1, help="processes, one thread each")
    parser.add_argument("--claims", nargs="+", metavar="CLAIM", help="some claims only")
    for name, explanation in (
        ("models", "random models per architecture (part a)"),
        ("repeats", "draws of every planted model (part b)"),
        ("samples", "samples of texts and null draws (part c)"),
        ("seeds", "other seeds (parts c and d)"),
        ("draws", "null draws of a card"),
    ):
        parser.add_argument(f"--{name}", type=int, default=getattr(Size, name), help=explanation)
    parser.add_argument("--search", action="store_true", help="search the strengths of part b again")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--smallest", action="store_true", help="run all code within seconds and store nothing")
    return parser


SMALLEST = Size(
    models=1,
    n_texts=4,
    n_tokens=10,
    untrained=2,
    samples=5,
    seeds=0,
    repeats=1,
    steps=1,
    search=True,
    background=("similarity",),
    shapes=SHAPES[:1],
    claims=("erasure", "directions"),
    subject="tiny model",
)


def store_part(part: str, result: Result, out: Path) -> None:
    file = out / "calibration.json"
    stored = json.loads(file.read_text()) if file.is_file() else {}
    out.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(stored | {part: result}, indent=1) + "\n")


def main(argv: list[str] | None = None) -> None:
    options = make_parser().parse_args(argv)
    size = SMALLEST
    if not options.smallest:
        fields = {name: getattr(options, name) for name in ("models", "repeats", "samples", "seeds", "draws", "search")}
        size = Size(**fields, claims=tuple(options.claims) if options.claims else None)
    out = None if options.smallest else options.out
    checkpoint = Checkpoint(None if out is None else out / "calibration.jsonl", options.workers)
    for part in options.part:
        result = PARTS[part](size, checkpoint, out)
        print(json.dumps({part: result}, indent=1))
        if out is not None:
            store_part(part, result, out)


if __name__ == "__main__":
    main()
