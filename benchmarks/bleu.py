"""sacreBLEU of a translator on a test set, detokenised and cased; needs `pip install sacrebleu`.

python benchmarks/bleu.py MODEL_DIRECTORY TEST.en TEST.de [--beam 5]
python benchmarks/bleu.py --smallest     an untrained translator says something, and nothing is scored
"""

import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch
from timing import arguments

from rheoscope.models.checkpoint import load_network, save
from rheoscope.models.config import Config
from rheoscope.models.generate import translate
from rheoscope.models.sentence_pairs import END, PAD, SPECIALS, START
from rheoscope.models.transformer import build
from rheoscope.models.vocabulary import character_tokenizer, decode, encode


def translations(directory: Path, lines: list[str], beam: int, longest: int = 80) -> list[str]:
    """Every line, a hundred of like length at a time."""
    model, tokenizer = load_network(directory)
    ids = [[*encode(tokenizer, line.strip()), END] for line in lines]
    order, found = sorted(range(len(ids)), key=lambda at: len(ids[at])), [""] * len(ids)
    for start in range(0, len(order), 100):
        group = order[start : start + 100]
        width = max(len(ids[at]) for at in group)
        source = torch.tensor([ids[at] + [PAD] * (width - len(ids[at])) for at in group])
        targets = translate(model, source, START, END, max_tokens=longest, beam=beam, is_token=source != PAD)
        for at, row in zip(group, targets.tolist(), strict=True):
            found[at] = decode(tokenizer, row[: row.index(END)] if END in row else row)
    return found


def score(directory: Path, source: Path, reference: Path, beam: int) -> None:
    import sacrebleu

    metric = sacrebleu.BLEU()
    ours = translations(directory, source.read_text().splitlines(), beam)
    print(f"beam {beam}: {metric.corpus_score(ours, [reference.read_text().splitlines()])}  {metric.get_signature()}")


def smallest(beam: int) -> None:
    """A translator of random weights, from its directory to its words."""
    lines = ["a cat", "the cat sat on the mat"]
    letters = character_tokenizer(lines, list(SPECIALS))
    shape = {"vocabulary": letters.get_vocab_size(), "width": 16, "depth": 1, "heads": 2, "context": 32}
    with tempfile.TemporaryDirectory() as folder:
        save(build(Config(form="encoder-decoder", **shape)), Path(folder) / "model", tokenizer=letters)
        print(translations(Path(folder) / "model", lines, beam, longest=8))


def main(words: Sequence[str] | None = None) -> None:
    parser = arguments(__doc__)
    parser.add_argument("files", nargs="*", type=Path, metavar="MODEL_DIRECTORY TEST.en TEST.de")
    parser.add_argument("--beam", type=int, default=5)
    asked = parser.parse_args(words)
    if asked.smallest:
        smallest(asked.beam)
    elif len(asked.files) == 3:
        score(*asked.files, asked.beam)
    else:
        parser.error("type the directory of a translator, a source and a reference")


if __name__ == "__main__":
    main()
