"""Articles as JSON lines, one a row, which `rheoscope corpus run` reads: of WikiText's files, or of a MediaWiki dump as prose.

python examples/articles.py valid.txt test.txt --out wikitext2.jsonl.gz
python examples/articles.py enwik8.gz --bytes 10000000 --out enwik8.jsonl.gz
"""

import argparse
import gzip
import json
import re
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path

from rheoscope.files import write_file
from rheoscope.models.text_files import read_fragments

TITLE = re.compile(r" = [^=].* = \n?")
"""A heading of the first rank in WikiText; its sections have two signs and more."""


def of_wikitext(told: Iterable[str]) -> Iterator[str]:
    """Its articles, each from its title on."""
    held: list[str] = []
    for line in told:
        if TITLE.fullmatch(line):
            if "".join(held).strip():
                yield "".join(held)
            held = []
        held.append(line)
    if "".join(held).strip():
        yield "".join(held)


def of_file(file: Path) -> Iterator[str]:
    """The articles of a dump are documents already; a file of WikiText is one document of many."""
    held: list[str] = []
    for fragment in read_fragments(file):
        if fragment is None:
            yield from of_wikitext("".join(held).splitlines(keepends=True))
            held = []
        else:
            held.append(fragment)


def first_bytes(texts: Iterable[str], most: float) -> Iterator[str]:
    """The first texts that have so many bytes together at most."""
    held = 0
    for text in texts:
        held += len(text.encode())
        if held > most:
            return
        yield text


def write_rows(texts: Iterable[str], file: Path) -> int:
    """Rows of a gzipped file of JSON lines, the same bytes each time; how many."""
    count = 0
    with file.open("wb") as raw, gzip.GzipFile("", "wb", fileobj=raw, mtime=0) as out:
        for count, text in enumerate(texts, 1):  # noqa: B007
            out.write((json.dumps({"text": text}, ensure_ascii=False) + "\n").encode())
    return count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--bytes", type=float, default=float("inf"), help="of prose at most (default: all)")
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    texts = first_bytes(chain.from_iterable(map(of_file, asked.files)), asked.bytes)
    write_file(asked.out, lambda file: print(f"{write_rows(texts, file):,} articles in {asked.out}"))


if __name__ == "__main__":
    main()
