"""sacreBLEU of a translator on a test set, detokenised and cased; needs `pip install sacrebleu`.

python benchmarks/bleu.py MODEL_DIRECTORY TEST.en TEST.de [BEAM]
"""

import sys
from pathlib import Path

import sacrebleu
import torch

from rheoscope.models.checkpoint import opened
from rheoscope.models.generate import translate
from rheoscope.models.pairs import END, PAD, START
from rheoscope.models.vocabulary import decode, encode


def translations(directory: str, lines: list[str], beam: int) -> list[str]:
    """Every line, a hundred of like length at a time."""
    model, tokenizer = opened(directory)
    ids = [[*encode(tokenizer, line.strip()), END] for line in lines]
    order, found = sorted(range(len(ids)), key=lambda at: len(ids[at])), [""] * len(ids)
    for start in range(0, len(order), 100):
        group = order[start : start + 100]
        longest = max(len(ids[at]) for at in group)
        source = torch.tensor([ids[at] + [PAD] * (longest - len(ids[at])) for at in group])
        targets = translate(model, source, START, END, longest=80, beam=beam, real=source != PAD)
        for at, row in zip(group, targets.tolist(), strict=True):
            found[at] = decode(tokenizer, row[: row.index(END)] if END in row else row)
    return found


if __name__ == "__main__":
    directory, source, reference = sys.argv[1:4]
    beam = int(sys.argv[4]) if len(sys.argv) > 4 else 5
    metric = sacrebleu.BLEU()
    ours = translations(directory, Path(source).read_text().splitlines(), beam)
    print(
        f"beam {beam}: {metric.corpus_score(ours, [Path(reference).read_text().splitlines()])}  {metric.get_signature()}"
    )
