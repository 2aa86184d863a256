"""Export a text: every response about it as a file under the path at which the server would send it."""

import base64
import gzip
import json
import re
import shutil
from collections.abc import Iterator
from concurrent.futures import wait
from pathlib import Path

from rheoscope.catalogue import ANALYSIS_MODULES
from rheoscope.files import atomic_file
from rheoscope.messages.advice import Advice
from rheoscope.messages.message import Message
from rheoscope.report.progress_bars import progress
from rheoscope.shapes import RheoscopeError
from rheoscope.studio import cards, descriptions, detail_queries, head_detail, wire
from rheoscope.studio.session import Session, TextEntry
from rheoscope.studio.startup import DEFAULT_OPTIONS, StudioOptions, start_session
from rheoscope.studio.stored_example import EXAMPLE_FOLDER, PAGE_FOLDER, decompress

SCRIPT_PREFIX = "Object.assign(window.RHEOSCOPE_FILES??={},"
"""The start of a script of responses. Each script adds its responses to those that are already loaded."""
EXPORT_TAG = '<script type="application/json" id="rheoscope-export">{}</script>'
MAX_FINE_PAIRS = 2_000_000
"""Largest number of token pairs, over all heads, with fine maps and images. It keeps a page at a few MB."""
ExportFiles = Iterator[tuple[str, bytes]]
"""Pairs of a path below the page and the contents of the file."""


def save_export(
    folder: Path, text: str, options: StudioOptions = DEFAULT_OPTIONS, page_folder: Path | None = PAGE_FOLDER
) -> Message:
    """Run every analysis of the report on a text and write its page into a new or empty folder.

    Without `page_folder` only the responses are written.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise RheoscopeError(
            Message("{folder} exists and is not empty; an export does not overwrite files", folder=str(folder)),
            Advice("", "--export NEW_DIR"),
        )
    session = start_session(options)
    try:
        entry = run_all_analyses(session, text)
        size = write_export(folder, session, entry, page_folder)
    finally:
        session.close()
    path = folder if page_folder is None else folder / "index.html"
    return Message("wrote {path} ({megabytes:.1f} MB)", path=str(path), megabytes=size / 1e6)


def run_all_analyses(session: Session, text: str) -> TextEntry:
    """Run all analyses of a text and show their progress on a bar."""
    opened_model = session.get_model(session.first_model)
    entry, _ = session.get_or_trace(opened_model, opened_model.job.result.result(), text, ())
    job, _ = session.start_story(entry)
    n_requests = len(session.requests(None))
    with job.followed(), progress(Message("analysing")) as on_progress:
        while not job.is_over:
            wait([job.result], timeout=0.5)
            on_progress(sum(event_name in ("known", "failed") for event_name, _ in list(job.log.events)), n_requests)
    job.result.result()
    return entry


def write_export(folder: Path, session: Session, entry: TextEntry, page_folder: Path | None) -> int:
    """Write all files of an export and return their total size in bytes.

    With a page the responses are in scripts next to it. Without one they are separate files.
    """
    files = {path: compress_response(path, data) for path, data in export_files(session, entry)}
    if page_folder is not None:
        files = to_scripts(files)
        shutil.copytree(page_folder, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns(EXAMPLE_FOLDER))
        files["index.html"] = mark_as_export(
            (page_folder / "index.html").read_text(encoding="utf-8"), entry.id
        ).encode()
    for path, data in files.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(target) as temporary_file:
            temporary_file.write_bytes(data)
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def export_files(session: Session, entry: TextEntry) -> ExportFiles:
    """Every response that a page requests about one text, as the server would send it."""
    yield (
        "api/state.json",
        wire.encode_json(
            descriptions.state_json(session, [entry.opened_model.json_dict], entry.opened_model.id, entry.id)
        ),
    )
    yield "api/catalogue.json", wire.encode_json(descriptions.catalogue_json())
    yield "api/models.json", wire.encode_json({"models": [entry.opened_model.json_dict], "recent": [], "sources": []})
    card = cards.card_json(entry.model, entry.opened_model.untrained)
    yield f"api/cards/{entry.opened_model.id}.json", wire.encode_json(card)
    trace_path = f"api/traces/{entry.id}"
    yield f"{trace_path}.json", wire.encode_json(entry.header)
    yield f"{trace_path}/story.json", wire.encode_json(descriptions.story_json(entry.results))
    yield f"{trace_path}/points.bin", detail_queries.pack_cloud(session, entry, "all", "sphere")
    yield f"{trace_path}/points.raw.bin", detail_queries.pack_cloud(session, entry, "all", "raw")
    if entry.trace.view.predicts_tokens:
        yield f"{trace_path}/lens.bin", detail_queries.pack_lens(entry)
        for position in range(len(entry.trace)):
            yield f"{trace_path}/token/{position}.json", wire.encode_json(detail_queries.token_json(entry, position))
    for name, dataset in entry.results.datasets.items():
        if name in ANALYSIS_MODULES:
            yield f"{trace_path}/analyses/{name}.bin", session.pack_result(entry, dataset)
    n_pairs = len(entry.trace) ** 2 * sum(heads.n_heads for heads in entry.trace.view.layer_heads)
    n_levels = wire.FINE_LEVELS if n_pairs <= MAX_FINE_PAIRS else wire.COARSE_LEVELS
    for layer, heads in enumerate(entry.trace.view.layer_heads):
        for head in range(heads.n_heads):
            yield (
                f"{trace_path}/weights/{layer}/{head}.bin",
                detail_queries.pack_head_map(entry, layer, head, "weights", n_levels),
            )
            yield (
                f"{trace_path}/spectrum/{layer}/{head}.json",
                wire.encode_json(detail_queries.spectrum_json(entry, layer, head)),
            )
            yield (
                f"{trace_path}/moves/{layer}/{head}.bin",
                head_detail.pack_displacements(session, entry, layer, head, "all", "sphere"),
            )
            if n_pairs <= MAX_FINE_PAIRS and len(entry.trace.valid_mask().nonzero()) >= head_detail.MIN_TOKENS:
                yield f"{trace_path}/images/{layer}/{head}.bin", head_detail.pack_images(entry, layer, head)


def compress_response(path: str, data: bytes) -> bytes:
    """Compress the kinds of response that are large or occur many times, so that the web server need not."""
    is_large = path.endswith(".bin") or "/token/" in path or "/spectrum/" in path or path.startswith("api/cards/")
    return gzip.compress(data, 9, mtime=0) if is_large else data


def to_scripts(files: dict[str, bytes]) -> dict[str, bytes]:
    """Pack the responses, compressed, into classic scripts. A page can load these from disk and from a web server."""
    script_entries: dict[str, dict[str, str]] = {}
    for path, data in files.items():
        encoded = base64.b64encode(gzip.compress(decompress(data), 9, mtime=0)).decode()
        script_entries.setdefault(script_path(path), {})[path] = encoded
    return {
        script_name: f"{SCRIPT_PREFIX}{json.dumps(entries, separators=(',', ':'))});\n".encode()
        for script_name, entries in script_entries.items()
    }


def script_path(path: str) -> str:
    """The script that contains a response. Scripts of single heads and tokens load on demand (api.ts has the same rule).

    >>> script_path("api/traces/ab/weights/3/1.bin"), script_path("api/traces/ab/token/7.json"), script_path("api/state.json")
    ('data/layer-3.js', 'data/tokens.js', 'data.js')
    """
    if match_head := re.search(r"/(?:weights|spectrum|moves|images)/(\d+)/\d+\.", path):
        return f"data/layer-{match_head[1]}.js"
    if "/token/" in path:
        return "data/tokens.js"
    return "data/card.js" if path.startswith("api/cards/") else "data.js"


def mark_as_export(html: str, trace_id: str) -> str:
    """The page with a tag that marks it as an export and names its text.

    >>> mark_as_export("<head></head>", "ab12")
    '<head><script type="application/json" id="rheoscope-export">{"trace":"ab12"}</script></head>'
    """
    if "</head>" not in html:
        raise RheoscopeError(Message("the built page has no </head> tag"), Advice("", "make studio"))
    return html.replace(
        "</head>", EXPORT_TAG.format(json.dumps({"trace": trace_id}, separators=(",", ":"))) + "</head>", 1
    )


if __name__ == "__main__":  # `make studio` writes the stored example
    import sys

    shutil.rmtree(PAGE_FOLDER / EXAMPLE_FOLDER, ignore_errors=True)
    print(save_export(PAGE_FOLDER / EXAMPLE_FOLDER, sys.argv[1], page_folder=None))
