"""The same page as files: every answer about one text under the path where the server would give it."""

import base64
import gzip
import json
import re
import shutil
from collections.abc import Iterator
from concurrent.futures import wait
from pathlib import Path

from rheoscope.catalogue import TABLE
from rheoscope.files import whole_file
from rheoscope.report.progress_bars import progress
from rheoscope.shapes import RheoscopeError
from rheoscope.studio import descriptions, detail_queries, head_detail, wire
from rheoscope.studio.session import Entry, Session
from rheoscope.studio.startup import FIRST, Opening, opened
from rheoscope.studio.stored_example import EXAMPLE, STATIC, inflated

HELD = "Object.assign(window.RHEOSCOPE_FILES??={},"
"""How a script of answers starts; each adds its own to those that are there."""
MARK = '<script type="application/json" id="rheoscope-export">{}</script>'
FINE_PAIRS = 2_000_000
"""Pairs of tokens, over all heads, beyond which maps are told in fewer steps and what heads see is left out: a few megabytes are a page."""
Files = Iterator[tuple[str, bytes]]
"""Paths below the page, and what they hold."""


def save(folder: Path, text: str, opening: Opening = FIRST, page: Path | None = STATIC) -> str:
    """Ask everything of a text and write the page of it into a folder, a new or an empty one; without a page the answers alone."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise RheoscopeError(f"{folder} is there already and not empty; type a new name, nothing is overwritten")
    session = opened(opening)
    try:
        entry = asked(session, text)
        size = write(folder, session, entry, page)
    finally:
        session.close()
    return f"wrote {folder / 'index.html' if page is not None else folder} ({size / 1e6:.1f} MB)"


def asked(session: Session, text: str) -> Entry:
    """The text with all its answers, told on a bar while they come."""
    first = session.opened(session.first)
    entry, _ = session.trace(first, first.job.result.result(), text, ())
    job, _ = session.tell(entry)
    many = len(session.asks(entry, None))
    with progress("asking") as tell:
        while not job.over:
            wait([job.result], timeout=0.5)
            tell(sum(event in ("known", "failed") for event, _ in list(job.log.told)), many)
    job.result.result()
    return entry


def write(folder: Path, session: Session, entry: Entry, page: Path | None) -> int:
    """All files of an export, answers in scripts beside the page or, without one, as they are; gives their size in bytes."""
    files = {path: packed(path, data) for path, data in answers(session, entry)}
    if page is not None:
        files = scripts(files)
        shutil.copytree(page, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns(EXAMPLE))
        files["index.html"] = marked((page / "index.html").read_text(encoding="utf-8"), entry.id).encode()
    for path, data in files.items():
        place = folder / path
        place.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(place) as temporary:
            temporary.write_bytes(data)
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def answers(session: Session, entry: Entry) -> Files:
    """What a page asks of one text, as the server answers it."""
    yield "api/state.json", wire.written(descriptions.of_state(session, [entry.opened.told], entry.opened.id, entry.id))
    yield "api/catalogue.json", wire.written(descriptions.of_catalogue())
    yield "api/models.json", wire.written({"models": [entry.opened.told], "recent": [], "sources": []})
    own = f"api/traces/{entry.id}"
    yield f"{own}.json", wire.written(entry.head)
    yield f"{own}/verdicts.json", wire.written(descriptions.of_verdicts(entry.so_far))
    yield f"{own}/points.bin", detail_queries.cloud(session, entry, "all", "sphere")
    yield f"{own}/points.raw.bin", detail_queries.cloud(session, entry, "all", "raw")
    if entry.trace.view.unembed is not None:
        yield f"{own}/lens.bin", detail_queries.lens(entry)
        for at in range(len(entry.trace)):
            yield f"{own}/token/{at}.json", wire.written(detail_queries.token(entry, at))
    for name, dataset in entry.so_far.found.items():
        if name in TABLE:
            yield f"{own}/analyses/{name}.bin", session.packed(entry, dataset)
    many = len(entry.trace) ** 2 * sum(block.count for block in entry.trace.view.blocks)
    steps = wire.FINE if many <= FINE_PAIRS else wire.COARSE
    for layer, block in enumerate(entry.trace.view.blocks):
        for head in range(block.count):
            yield f"{own}/weights/{layer}/{head}.bin", detail_queries.head_map(entry, layer, head, "weights", steps)
            yield f"{own}/spectrum/{layer}/{head}.json", wire.written(detail_queries.spectrum(entry, layer, head))
            yield f"{own}/moves/{layer}/{head}.bin", head_detail.moves(session, entry, layer, head, "all", "sphere")
            if many <= FINE_PAIRS and len(entry.trace.ordinary().nonzero()) >= head_detail.LEAST_TOKENS:
                yield f"{own}/images/{layer}/{head}.bin", head_detail.images(entry, layer, head)


def packed(path: str, data: bytes) -> bytes:
    """Answers of which there are many are compressed as files: no web server needs to know how."""
    many = path.endswith(".bin") or "/token/" in path or "/spectrum/" in path
    return gzip.compress(data, 9, mtime=0) if many else data


def scripts(files: dict[str, bytes]) -> dict[str, bytes]:
    """Every answer in a classic script, which a page may read from disk as from a web server; all of them compressed."""
    held: dict[str, dict[str, str]] = {}
    for path, data in files.items():
        told = base64.b64encode(gzip.compress(inflated(data), 9, mtime=0)).decode()
        held.setdefault(script_of(path), {})[path] = told
    return {name: f"{HELD}{json.dumps(told, separators=(',', ':'))});\n".encode() for name, told in held.items()}


def script_of(path: str) -> str:
    """Which script holds an answer: what single heads and tokens are asked for comes when it is asked (wire.ts has the same rule).

    >>> script_of("api/traces/ab/weights/3/1.bin"), script_of("api/traces/ab/token/7.json"), script_of("api/state.json")
    ('data/layer-3.js', 'data/tokens.js', 'data.js')
    """
    if of_head := re.search(r"/(?:weights|spectrum|moves|images)/(\d+)/\d+\.", path):
        return f"data/layer-{of_head[1]}.js"
    return "data/tokens.js" if "/token/" in path else "data.js"


def marked(page: str, trace: str) -> str:
    """The page, told that it is an export and of which text.

    >>> marked("<head></head>", "ab12")
    '<head><script type="application/json" id="rheoscope-export">{"trace":"ab12"}</script></head>'
    """
    if "</head>" not in page:
        raise RheoscopeError("the built page has no head; type make studio")
    return page.replace("</head>", MARK.format(json.dumps({"trace": trace}, separators=(",", ":"))) + "</head>", 1)


if __name__ == "__main__":  # make studio: the example that the page opens on
    import sys

    shutil.rmtree(STATIC / EXAMPLE, ignore_errors=True)
    print(save(STATIC / EXAMPLE, sys.argv[1], page=None))
