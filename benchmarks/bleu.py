"""sacreBLEU of a translation model on a test set, detokenised and cased. Needs `pip install sacrebleu`.

python benchmarks/bleu.py MODEL_DIRECTORY TEST.en TEST.de [--beam 5]
python benchmarks/bleu.py --smallest     an untrained model translates two lines, nothing is scored
"""

import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch
from timing import make_parser

from rheoscope.models.checkpoint import load_network, save
from rheoscope.models.config import Config
from rheoscope.models.generate import translate
from rheoscope.models.transformer import build
from rheoscope.models.vocabulary import END, PAD, SPECIALS, START, character_tokenizer, decode, encode


def translations(directory: Path, lines: list[str], beam: int, max_tokens: int = 80) -> list[str]:
    """The translation of every line, in batches of a hundred lines of similar length."""
    model, tokenizer = load_network(directory)
    ids = [[*encode(tokenizer, line.strip()), END] for line in lines]
    order, outputs = sorted(range(len(ids)), key=lambda index: len(ids[index])), [""] * len(ids)
    for start in range(0, len(order), 100):
        group = order[start : start + 100]
        width = max(len(ids[index]) for index in group)
        source = torch.tensor([ids[index] + [PAD] * (width - len(ids[index])) for index in group])
        targets = translate(model, source, START, END, max_tokens=max_tokens, beam=beam, is_token=source != PAD)
        for index, row in zip(group, targets.tolist(), strict=True):
            outputs[index] = decode(tokenizer, row[: row.index(END)] if END in row else row)
    return outputs


def score(directory: Path, source: Path, reference: Path, beam: int) -> None:
    import sacrebleu

    metric = sacrebleu.BLEU()
    hypotheses = translations(directory, source.read_text().splitlines(), beam)
    print(
        f"beam {beam}: {metric.corpus_score(hypotheses, [reference.read_text().splitlines()])}  {metric.get_signature()}"
    )


def smallest(beam: int) -> None:
    """Save, load and run a translation model with random weights."""
    lines = ["a cat", "the cat sat on the mat"]
    letters = character_tokenizer(lines, list(SPECIALS))
    shape = {"vocabulary": letters.get_vocab_size(), "width": 16, "depth": 1, "heads": 2, "context": 32}
    with tempfile.TemporaryDirectory() as folder:
        save(build(Config(form="encoder-decoder", **shape)), Path(folder) / "model", tokenizer=letters)
        print(translations(Path(folder) / "model", lines, beam, max_tokens=8))


def main(argv: Sequence[str] | None = None) -> None:
    parser = make_parser(__doc__)
    parser.add_argument("files", nargs="*", type=Path, metavar="MODEL_DIRECTORY TEST.en TEST.de")
    parser.add_argument("--beam", type=int, default=5)
    options = parser.parse_args(argv)
    if options.smallest:
        smallest(options.beam)
    elif len(options.files) == 3:
        score(*options.files, options.beam)
    else:
        parser.error("MODEL_DIRECTORY, a source file and a reference file are required; or type --smallest")


if __name__ == "__main__":
    main()
