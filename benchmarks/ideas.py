"""The seven questions over several passages, and word senses and word groups at every layer, with untrained controls.

    python benchmarks/ideas.py --texts passages.txt                  the default model
    python benchmarks/ideas.py --texts passages.txt --model path/    another model (--smallest: seconds, nothing is stored)

Passages are separated by empty lines. The output has every number with its 95 % bootstrap interval over passages, the counts of
answers to each question, and the measures of senses and word groups at every layer. It is stored in results/ideas_<model>.json.
"""

import argparse
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

import rheoscope as rs
from rheoscope.statistics.intervals import bootstrap_t_interval

CONTROLS = 4
PASSAGES = (
    "The river bank was quiet in the morning, and a boat drifted past the old bank where the children used to fish before school.",
    "In the spring the town council voted to repair the bridge, and the engineers who had built it came back to look at the stones.",
)


def interval(values: Sequence[float]) -> list[float]:
    """The mean and its 95 % interval, which is NaN for fewer than four values."""
    finite = torch.tensor([value for value in values if value == value], dtype=torch.float64)
    low, high = bootstrap_t_interval(finite)
    return [float(finite.mean()), float(low), float(high)]


def questions(model: Any, controls: Sequence[Any], texts: Sequence[str]) -> dict[str, Any]:
    """The numbers, nulls and answers of all passages, by question."""
    verdicts = []
    for text in texts:
        verdicts.append(rs.verdicts(model, model.trace(text), controls))
        print(f"{len(verdicts)} of {len(texts)} passages", flush=True)
        for question, answer, line in zip(
            verdicts[-1].question.values, verdicts[-1].answer.values, verdicts[-1].line.values, strict=True
        ):
            print(f"  {answer}: {question} {line}", flush=True)
    answers = {
        str(question): dict(Counter(str(verdict.answer.sel(question=question).item()) for verdict in verdicts))
        for question in verdicts[0].question.values
    }
    rows: dict[str, Any] = {}
    for name in dict.fromkeys(str(label) for verdict in verdicts for label in verdict.statement.values):
        parts = [verdict.isel(statement=verdict.statement == name) for verdict in verdicts]
        for index in range(max(part.sizes["statement"] for part in parts)):
            matches = [part.isel(statement=index) for part in parts if part.sizes["statement"] > index]
            rows[f"{name} {matches[0].analysis.item()}"] = {
                "value": interval([float(row.value) for row in matches]), "null": interval([float(row.null) for row in matches]),
                "sure": sum(float(row.q) <= verdicts[0].attrs["level"] for row in matches), "of": len(matches),
            }  # fmt: skip
    return {"answers": answers, "numbers": rows, "lines": [verdict.line.values.tolist() for verdict in verdicts]}


def meaning_measures(model: Any, control: Any, smallest: bool) -> dict[str, Any]:
    """Word senses and word groups at every layer."""
    settings: dict[str, Any] = {"draws": 20} if smallest else {}
    results = {
        "senses": rs.senses(model, control=control, **settings),
        "relatedness": rs.relatedness(model, control=control, **settings),
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
        name: {"point": result.point.values.tolist()}
        | {field: result[field].values.tolist() for field in fields[name] if field in result}
        for name, result in results.items()
    }


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=Path, help="a file of passages")
    parser.add_argument("--model", help="a hub name or a directory")
    parser.add_argument("--controls", type=int, default=CONTROLS)
    parser.add_argument("--no-meaning", action="store_true", help="skip word senses and word groups")
    parser.add_argument("--smallest", action="store_true", help="run all code within seconds and store nothing")
    options = parser.parse_args(argv)
    texts = (
        PASSAGES
        if options.texts is None
        else [passage.strip() for passage in options.texts.read_text().split("\n\n") if passage.strip()]
    )
    model = rs.load(options.model)
    n_controls = 1 if options.smallest else options.controls
    controls = [rs.load(options.model, untrained=True, seed=seed) for seed in range(n_controls)]
    results = questions(model, controls, [texts[0][:40]] if options.smallest else texts)
    if not options.no_meaning and not options.smallest:
        results |= meaning_measures(model, controls[0] if controls else None, options.smallest)
    for name, row in results["numbers"].items():
        print(f"{name:28} {row['value']}  null {row['null']}  significant in {row['sure']} of {row['of']}")
    for question, counts in results["answers"].items():
        print(f"{question}  {counts}")
    for name in ("senses", "relatedness"):
        for index, point in enumerate(results.get(name, {}).get("point", [])):
            print(
                name,
                point,
                {field: round(values[index], 3) for field, values in results[name].items() if field != "point"},
            )
    if not options.smallest:
        model_name = Path(options.model).name if options.model else "default"
        path = Path(__file__).parent / "results" / f"ideas_{model_name}.json"
        path.write_text(json.dumps(results, indent=1) + "\n")
        print(f"stored {path}")


if __name__ == "__main__":
    main()
