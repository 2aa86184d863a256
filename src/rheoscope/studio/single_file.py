"""A page in one HTML file: the journey of the predicting token, which plays without a server."""

import base64
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

from rheoscope.files import signature
from rheoscope.messages.advice import Advice
from rheoscope.messages.message import Message
from rheoscope.shapes import RheoscopeError
from rheoscope.studio.exported_files import EXPORT_TAG, ExportFiles, text_files, to_scripts
from rheoscope.studio.notebook import COLOUR_ANALYSES
from rheoscope.studio.session import Session, TextEntry
from rheoscope.studio.stored_example import PAGE_FOLDER, StoredExample, check_page
from rheoscope.studio.used_translations import used_translations

START = '<!doctype html>\n<html lang="en">\n  <head>'
SCRIPT, STYLE = '<script defer src="./assets/studio.js"></script>', '<link rel="stylesheet" href="./assets/studio.css">'


def journey_files(session: Session, entry: TextEntry, stored_example: StoredExample | None = None) -> ExportFiles:
    """The responses behind cloud, bars and story of a text: those of the stored example, else those that are known by now."""
    analyses = (
        (f"api/traces/{entry.id}/analyses/{name}.bin", session.pack_result(entry, dataset))
        for name, dataset in entry.results.datasets.items()
        if name in COLOUR_ANALYSES
    )
    files = dict(text_files(session, entry)) | dict(analyses)
    if stored_example is not None:
        names = [f"/analyses/{name}.bin" for name in COLOUR_ANALYSES]
        for name in ("/story.json", *names):
            path, _, extension = f"{entry.id}{name}".rpartition(".")
            data = stored_example.read_response(path, extension)
            if data is not None:
                files[f"api/traces/{path}.{extension}"] = data
    yield from files.items()


def single_file(files: ExportFiles, trace_id: str, language: str, page_folder: Path = PAGE_FOLDER) -> bytes:
    """One HTML file with the page, its style and the responses of a text.

    It needs no network: scripts, style and data are inside, and with `language` the translations that they use.
    """
    check_page(page_folder)
    html = _read(page_folder / "index.html")
    if any(part not in html for part in (START, SCRIPT, STYLE, "</body>")):
        raise RheoscopeError(Message("the built page has another structure than expected"), Advice("", "make studio"))
    facts = {"trace": trace_id, "content": "journey", "language": language}
    responses, page_script = dict(files), _read(page_folder / "assets" / "studio.js")
    scripts = [data.decode() for data in to_scripts(responses).values()]
    if language != "en":
        catalogue = _read(page_folder / "assets" / f"messages-{language}.js")
        scripts.append(used_translations(catalogue, [page_script.encode(), *responses.values()]))
    scripts.append(page_script)
    scripts = [_escape(script) for script in scripts]
    style = _read(page_folder / "assets" / "studio.css")
    html = html.replace(SCRIPT, "").replace(START, _start(language, content_security_policy(scripts, style)), 1)
    html = html.replace(STYLE, f"<style>{style}</style>")
    tags = EXPORT_TAG.format(json.dumps(facts)) + "".join(f"<script>{script}</script>\n" for script in scripts)
    return html.replace("</body>", f"{tags}</body>").encode()


def _start(language: str, policy: str) -> str:
    """The first tags: the signature, by which a later export recognises the file, and the policy for the browser."""
    html_language = "zh-Hans" if language == "zh" else language
    return (
        f'<!doctype html><html lang="{html_language}"><meta name="generator" content="{signature()}">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
    )


def content_security_policy(scripts: Sequence[str], style: str) -> str:
    """The policy under which only these scripts and this style run, and nothing is requested from any server."""
    return (
        f"default-src 'none'; script-src {' '.join(map(_hash_source, scripts))}; style-src {_hash_source(style)}; "
        "img-src data: blob:; worker-src blob:; base-uri 'none'; form-action 'none'"
    )


def _hash_source(content: str) -> str:
    """A source of a policy that allows inline content by its hash."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"


def _read(file: Path) -> str:
    return file.read_text(encoding="utf-8")


def _escape(script: str) -> str:
    """A script that HTML cannot end early."""
    return script.replace("</script", "<\\/script").replace("<!--", "<\\!--")
