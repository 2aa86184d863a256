"""What the ideas claim, answered: the seven questions over several passages, word senses and word groups, beside untrained controls.

    python benchmarks/ideas.py --texts passages.txt                  the model that ships
    python benchmarks/ideas.py --texts passages.txt --model path/    another (--smallest: seconds, nothing stored)

Passages are separated by empty lines. Prints every number with its interval over passages (95 %, passages drawn anew), how often
each question was answered how, and what senses and word groups give at every layer. Stores results/ideas_<model>.json.
"""

import argparse
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

import rheoscope as rs
from rheoscope.statistics.nulls import bootstrap_interval

CONTROLS = 4
PASSAGES = (
    "The river bank was quiet in the morning, and a boat drifted past the old bank where the children used to fish before school.",
    "In the spring the town council voted to repair the bridge, and the engineers who had built it came back to look at the stones.",
)


def interval(values: Sequence[float]) -> list[float]:
    """Mean, and where the middle 95 % of means of passages drawn anew lie; no ends for fewer than five."""
    seen = torch.tensor([one for one in values if one == one], dtype=torch.float64)
    low, high = bootstrap_interval(seen, [1] * len(seen), torch.Generator().manual_seed(0))
    return [float(seen.mean()), float(low), float(high)]


def questions(model: Any, controls: Sequence[Any], texts: Sequence[str]) -> dict[str, Any]:
    """Every passage asked; numbers, nulls and answers by question."""
    told = []
    for text in texts:
        told.append(rs.verdicts(model, model.trace(text), controls))
        print(f"{len(told)} of {len(texts)} passages", flush=True)
        for question, answer, line in zip(
            told[-1].question.values, told[-1].answer.values, told[-1].line.values, strict=True
        ):
            print(f"  {answer}: {question} {line}", flush=True)
    answers = {
        str(one): dict(Counter(str(d.answer.sel(question=one).item()) for d in told)) for one in told[0].question.values
    }
    rows: dict[str, Any] = {}
    for name in dict.fromkeys(str(one) for d in told for one in d.statement.values):
        parts = [d.isel(statement=d.statement == name) for d in told]
        for at in range(max(part.sizes["statement"] for part in parts)):
            there = [part.isel(statement=at) for part in parts if part.sizes["statement"] > at]
            rows[f"{name} {there[0].analysis.item()}"] = {
                "value": interval([float(one.value) for one in there]), "null": interval([float(one.null) for one in there]),
                "sure": sum(float(one.q) <= told[0].attrs["level"] for one in there), "of": len(there),
            }  # fmt: skip
    return {"answers": answers, "numbers": rows, "lines": [d.line.values.tolist() for d in told]}


def meaning(model: Any, control: Any, smallest: bool) -> dict[str, Any]:
    """Word senses and word groups at every layer."""
    few: dict[str, Any] = {"draws": 20} if smallest else {}
    found = {
        "senses": rs.senses(model, control=control, **few),
        "relatedness": rs.relatedness(model, control=control, **few),
    }
    fields = {
        "senses": (
            "effect",
            "effect_low",
            "effect_high",
            "p_value",
            "nearest_same_sense",
            "nearest_same_sense_null",
            "effect_untrained",
            "nearest_same_sense_untrained",
        ),
        "relatedness": (
            "correlation",
            "correlation_null_sd",
            "p_value",
            "same_group_nearer",
            "same_group_nearer_low",
            "same_group_nearer_high",
            "same_group_nearer_untrained",
        ),
    }
    return {
        name: {"point": d.point.values.tolist()} | {one: d[one].values.tolist() for one in fields[name] if one in d}
        for name, d in found.items()
    }


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=Path, help="a file of passages")
    parser.add_argument("--model", help="a hub name or a directory")
    parser.add_argument("--controls", type=int, default=CONTROLS)
    parser.add_argument("--no-meaning", action="store_true", help="leave senses and word groups out")
    parser.add_argument("--smallest", action="store_true", help="seconds: shows that it runs, stores nothing")
    options = parser.parse_args(words)
    texts = (
        PASSAGES
        if options.texts is None
        else [one.strip() for one in options.texts.read_text().split("\n\n") if one.strip()]
    )
    model = rs.load(options.model)
    many = 1 if options.smallest else options.controls
    controls = [rs.load(options.model, untrained=True, seed=seed) for seed in range(many)]
    found = questions(model, controls, [texts[0][:60]] if options.smallest else texts)
    if not options.no_meaning and not options.smallest:
        found |= meaning(model, controls[0] if controls else None, options.smallest)
    for name, row in found["numbers"].items():
        print(f"{name:28} {row['value']}  null {row['null']}  sure in {row['sure']} of {row['of']}")
    for question, counted in found["answers"].items():
        print(f"{question}  {counted}")
    for name in ("senses", "relatedness"):
        for at, point in enumerate(found.get(name, {}).get("point", [])):
            print(
                name, point, {field: round(values[at], 3) for field, values in found[name].items() if field != "point"}
            )
    if not options.smallest:
        called = Path(options.model).name if options.model else "default"
        stored = Path(__file__).parent / "results" / f"ideas_{called}.json"
        stored.write_text(json.dumps(found, indent=1) + "\n")
        print(f"stored {stored}")


if __name__ == "__main__":
    main()
