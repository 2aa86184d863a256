"""The claims of the card over many passages, and word senses and word groups at every layer, with an untrained control.

    python benchmarks/ideas.py                                       the default model on the passages of the package
    python benchmarks/ideas.py --texts passages.txt --model path/    another model (--smallest: seconds, nothing is stored)

Passages are separated by empty lines. The output has every claim with its estimate, its interval and its answer, and the measures of
senses and word groups at every layer. It is stored in results/ideas_<model>.json.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import rheoscope as rs

CLAIM_FIELDS = ("estimate", "low", "high", "smallest_effect", "random_mean", "threshold", "observed", "answer")


def claims(model: Any, texts: Sequence[Any] | None, cache: bool) -> dict[str, Any]:
    """Every claim of the card with its numbers and its answer. Without texts, the passages of the package are used."""
    card = rs.card(model, texts, cache=cache)
    rows = {str(name): card.sel(claim=name) for name in card.claim.values}
    return {
        "texts": card.attrs["n_texts"],
        "claims": {name: {field: row[field].item() for field in CLAIM_FIELDS} for name, row in rows.items()},
    }


def meaning_measures(model: Any, control: Any) -> dict[str, Any]:
    """Word senses and word groups at every layer."""
    results = {
        "senses": rs.senses(model, control=control),
        "relatedness": rs.relatedness(model, control=control),
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
    parser.add_argument("--no-meaning", action="store_true", help="skip word senses and word groups")
    parser.add_argument("--smallest", action="store_true", help="run all code within seconds and store nothing")
    options = parser.parse_args(argv)
    if options.smallest:
        print_claims(claims(rs.load(), None, cache=True))  # this card comes with the package
        return
    texts = None
    if options.texts is not None:
        texts = [passage.strip() for passage in options.texts.read_text().split("\n\n") if passage.strip()]
    model = rs.load(options.model)
    results = claims(model, texts, cache=True)
    print_claims(results)
    if not options.no_meaning:
        results |= meaning_measures(model, rs.load(options.model, untrained=True))
        print_meaning(results)
    model_name = Path(options.model).name if options.model else "default"
    path = Path(__file__).parent / "results" / f"ideas_{model_name}.json"
    path.write_text(json.dumps(results, indent=1) + "\n")
    print(f"stored {path}")


def print_claims(results: dict[str, Any]) -> None:
    for name, row in results["claims"].items():
        print(f"{name:24} {row['answer']:8} {row['estimate']:8.3f} ({row['low']:.3f} to {row['high']:.3f})")


def print_meaning(results: dict[str, Any]) -> None:
    for name in ("senses", "relatedness"):
        for index, point in enumerate(results[name]["point"]):
            numbers = {field: round(values[index], 3) for field, values in results[name].items() if field != "point"}
            print(name, point, numbers)


if __name__ == "__main__":
    main()
