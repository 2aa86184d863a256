"""The files of an export: every response about one text, under the path at which the server would send it."""

import base64
import gzip
import json
import re
from collections.abc import Iterator

from rheoscope.catalogue import ANALYSIS_MODULES
from rheoscope.messages.advice import Advice
from rheoscope.messages.message import Message
from rheoscope.shapes import RheoscopeError
from rheoscope.studio import cards, descriptions, detail_queries, head_detail, wire
from rheoscope.studio.projected_points import DEFAULT_AXES
from rheoscope.studio.session import Session, TextEntry
from rheoscope.studio.stored_example import decompress

SCRIPT_PREFIX = "Object.assign(window.RHEOSCOPE_FILES??={},"
"""The start of a script of responses. Each script adds its responses to those that are already loaded."""
EXPORT_TAG = '<script type="application/json" id="rheoscope-export">{}</script>'
MAX_FINE_PAIRS = 2_000_000
"""Largest number of token pairs, over all heads, with fine maps and images. It keeps a page at a few MB."""
ExportFiles = Iterator[tuple[str, bytes]]
"""Pairs of a path below the page and the contents of the file."""


def export_files(session: Session, entry: TextEntry) -> ExportFiles:
    """Every response that a page requests about one text, as the server would send it."""
    yield from text_files(session, entry)
    yield from view_files(session, entry)


def text_files(session: Session, entry: TextEntry) -> ExportFiles:
    """The responses behind the stage: the text, its points, its story and the lens of every token."""
    yield (
        "api/state.json",
        wire.encode_json(
            descriptions.state_json(session, [entry.opened_model.json_dict], entry.opened_model.id, entry.id)
        ),
    )
    yield "api/catalogue.json", wire.encode_json(descriptions.catalogue_json())
    yield "api/models.json", wire.encode_json({"models": [entry.opened_model.json_dict], "recent": [], "sources": []})
    trace_path = f"api/traces/{entry.id}"
    yield f"{trace_path}.json", wire.encode_json(entry.header)
    yield f"{trace_path}/story.json", wire.encode_json(descriptions.story_json(entry.results))
    yield f"{trace_path}/points.bin", detail_queries.pack_cloud(session, entry, DEFAULT_AXES, "sphere")
    yield f"{trace_path}/points.raw.bin", detail_queries.pack_cloud(session, entry, DEFAULT_AXES, "raw")
    if entry.trace.view.predicts_tokens:
        yield f"{trace_path}/lens.bin", detail_queries.pack_lens(entry)
        for position in range(len(entry.trace)):
            yield f"{trace_path}/token/{position}.json", wire.encode_json(detail_queries.token_json(entry, position))


def view_files(session: Session, entry: TextEntry) -> ExportFiles:
    """The responses behind the views: the card of the model, the analyses and every head."""
    card = cards.card_json(entry.model, entry.opened_model.untrained)
    yield f"api/cards/{entry.opened_model.id}.json", wire.encode_json(card)
    trace_path = f"api/traces/{entry.id}"
    for name, dataset in entry.results.datasets.items():
        if name in ANALYSIS_MODULES:
            yield f"{trace_path}/analyses/{name}.bin", session.pack_result(entry, dataset)
            yield f"{trace_path}/analyses/{name}/tables.json", wire.encode_json(session.tables_json(entry, dataset))
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
                head_detail.pack_displacements(session, entry, layer, head, DEFAULT_AXES, "sphere"),
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
    if match_head := re.search(r"/(?:weights|spectrum|moves|images|cross)/(\d+)/\d+\.", path):
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
