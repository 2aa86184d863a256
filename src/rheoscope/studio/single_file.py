"""A page in one HTML file: the journey of the predicting token, which plays without a server."""

import base64
import json
from pathlib import Path

from rheoscope.messages.advice import Advice
from rheoscope.messages.message import Message
from rheoscope.shapes import RheoscopeError
from rheoscope.studio.exported_files import EXPORT_TAG, ExportFiles, text_files, to_scripts
from rheoscope.studio.notebook import COLOUR_ANALYSES
from rheoscope.studio.session import Session, TextEntry
from rheoscope.studio.stored_example import PAGE_FOLDER, StoredExample, check_page

SCRIPT, STYLE = '<script defer src="./assets/studio.js"></script>', '<link rel="stylesheet" href="./assets/studio.css">'
ICON = '<link rel="icon" href="./icon.svg" type="image/svg+xml" />'


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

    It needs no network: scripts, style and data are inside, and with `language` the translations too.
    """
    check_page(page_folder)
    html = (page_folder / "index.html").read_text(encoding="utf-8")
    if SCRIPT not in html or STYLE not in html or "</body>" not in html:
        raise RheoscopeError(Message("the built page has another structure than expected"), Advice("", "make studio"))
    facts = {"trace": trace_id, "content": "journey", "language": language}
    scripts = [data.decode() for data in to_scripts(dict(files)).values()]
    if language != "en":
        scripts.append(_read(page_folder / "assets" / f"messages-{language}.js"))
    scripts.append(_read(page_folder / "assets" / "studio.js"))
    icon = base64.b64encode((page_folder / "icon.svg").read_bytes()).decode()
    html = html.replace(ICON, f'<link rel="icon" href="data:image/svg+xml;base64,{icon}" />').replace(SCRIPT, "")
    html = html.replace(STYLE, f"<style>{_read(page_folder / 'assets' / 'studio.css')}</style>")
    tags = EXPORT_TAG.format(json.dumps(facts)) + "".join(f"<script>{_escape(script)}</script>\n" for script in scripts)
    return html.replace("</body>", f"{tags}</body>").encode()


def _read(file: Path) -> str:
    return file.read_text(encoding="utf-8")


def _escape(script: str) -> str:
    """A script that HTML cannot end early."""
    return script.replace("</script", "<\\/script").replace("<!--", "<\\!--")
