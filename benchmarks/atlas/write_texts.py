"""Texts for cards of the atlas: reactions for models of chemistry, digits for a model that sorts, and parts of the passages.

    python benchmarks/atlas/write_texts.py        writes reactions.txt, digits.jsonl and shorter lists beside it

Every third and every sixth passage of the package, and every third reaction, are for models whose cards over all 96 texts take
hours on a CPU. Reactions and digits are written for this project. The reactions are textbook reactions
of eight kinds as SMILES "reactants>>product". The digits are inputs of the sorting model: six digits below 3, then the first five
of the sorted ones.
"""

import json
import random
from itertools import product
from pathlib import Path

from rheoscope.report.card_texts import passages

FOLDER = Path(__file__).parent
N_TEXTS = 96
THIRD, SIXTH = 3, 6
"""Short lists have every third or sixth text."""
ALKYLS = ("CC", "CCC", "CC(C)C", "CCCCC", "COCC", "CC(C)(C)CC", "N#CCC", "CSCC")
"""Alkyl groups. The last atom is bound to the rest of the molecule."""
ARYLS = (
    "c{n}ccccc{n}",
    "c{n}ccc(C)cc{n}",
    "c{n}ccc(OC)cc{n}",
    "c{n}ccc(F)cc{n}",
    "c{n}ccc(C(F)(F)F)cc{n}",
    "c{n}cccc(Cl)c{n}",
    "c{n}ccc(C#N)cc{n}",
    "c{n}cccnc{n}",
)
"""Aromatic rings with number n. The first atom is bound to the rest of the molecule."""


def reactions(alkyl: str, aryl: str, other: str) -> list[str]:
    """One reaction of every kind, for an alkyl group and two aromatic rings.

    >>> reactions("CC", "c{n}ccccc{n}", "c{n}cccnc{n}")[2].rpartition(">>")[2]
    'c1(-c2cccnc2)ccccc1'
    """
    r, a, b = alkyl, aryl.format(n=1), other.format(n=2)
    return [
        f"{r}O.OC(=O){a}.O=S(=O)(O)O>>{r}OC(=O){a}",
        f"{r}N.ClC(=O){a}.CCN(CC)CC>>{r}NC(=O){a}",
        f"Br{a}.OB(O){b}.O=C([O-])[O-].[K+].[K+]>>{a.replace('c1', f'c1(-{b})', 1)}",
        f"{r}N.O=C{a}.[BH3-]C#N.[Na+]>>{r}NC{a}",
        f"{r}C(=O){a}.[BH4-].[Na+].CO>>{r}C(O){a}",
        f"{r}Br.O{a}.O=C([O-])[O-].[K+].[K+]>>{r}O{a}",
        f"ClS(=O)(=O){a}.N{b}.c1ccncc1>>O=S(=O)(N{b}){a}",
        f"{r}NC{a}.CC(C)(C)OC(=O)OC(=O)OC(C)(C)C>>{r}N(C(=O)OC(C)(C)C)C{a}",
    ]


def reaction_texts() -> list[str]:
    """96 different reactions, in random order."""
    generator = random.Random(0)
    choices = generator.sample(list(product(ALKYLS, ARYLS, ARYLS)), N_TEXTS)
    texts = list(dict.fromkeys(text for choice in choices for text in reactions(*choice)))[:N_TEXTS]
    return generator.sample(texts, N_TEXTS)


def digit_texts() -> list[list[int]]:
    """96 of the 729 inputs of the sorting model."""
    inputs = random.Random(0).sample(list(product(range(3), repeat=6)), N_TEXTS)
    return [[*digits, *sorted(digits)[:5]] for digits in inputs]


def main() -> None:
    lines = [f"{text}\n" for text in reaction_texts()]
    (FOLDER / "reactions.txt").write_text("".join(lines))
    (FOLDER / "reactions32.txt").write_text("".join(lines[::THIRD]))
    prose = [json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in passages()]
    for step in (THIRD, SIXTH):
        (FOLDER / f"passages{N_TEXTS // step}.jsonl").write_text("".join(prose[::step]), encoding="utf-8")
    (FOLDER / "digits.jsonl").write_text("".join(json.dumps({"ids": ids}) + "\n" for ids in digit_texts()))


if __name__ == "__main__":
    main()
