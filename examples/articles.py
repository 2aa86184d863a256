"""Convert WikiText files or a MediaWiki dump to JSON lines, one article per line, for `rheoscope corpus run`.

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
"""The title of an article in WikiText. Headings of sections have two or more equals signs."""


def split_wikitext(lines: Iterable[str]) -> Iterator[str]:
    """The articles of WikiText lines, each with its title."""
    parts: list[str] = []
    for line in lines:
        if TITLE.fullmatch(line):
            if "".join(parts).strip():
                yield "".join(parts)
            parts = []
        parts.append(line)
    if "".join(parts).strip():
        yield "".join(parts)


def read_articles(file: Path) -> Iterator[str]:
    """The articles of a file. A dump is already split into articles; a WikiText file is one document with many."""
    parts: list[str] = []
    for fragment in read_fragments(file):
        if fragment is None:
            yield from split_wikitext("".join(parts).splitlines(keepends=True))
            parts = []
        else:
            parts.append(fragment)


def first_bytes(texts: Iterable[str], max_bytes: float) -> Iterator[str]:
    """The first texts whose total size is at most `max_bytes`."""
    total_bytes = 0
    for text in texts:
        total_bytes += len(text.encode())
        if total_bytes > max_bytes:
            return
        yield text


def write_rows(texts: Iterable[str], file: Path) -> int:
    """Write a gzipped file of JSON lines, byte-identical for the same texts. Returns the number of lines."""
    count = 0
    with file.open("wb") as raw, gzip.GzipFile("", "wb", fileobj=raw, mtime=0) as out:
        for count, text in enumerate(texts, 1):  # noqa: B007
            out.write((json.dumps({"text": text}, ensure_ascii=False) + "\n").encode())
    return count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument(
        "--bytes", type=float, default=float("inf"), help="largest number of bytes of text (default: all)"
    )
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    texts = first_bytes(chain.from_iterable(map(read_articles, options.files)), options.bytes)
    write_file(options.out, lambda file: print(f"{write_rows(texts, file):,} articles in {options.out}"))


if __name__ == "__main__":
    main()
