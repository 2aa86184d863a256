"""Export a text: run every analysis on it and write its page."""

import shutil
from collections.abc import Iterator
from concurrent.futures import wait
from contextlib import contextmanager
from pathlib import Path

from rheoscope.files import atomic_file, check_writable, write_report
from rheoscope.messages.advice import Advice
from rheoscope.messages.catalogue import current_language
from rheoscope.messages.message import Message
from rheoscope.report.progress_bars import progress
from rheoscope.shapes import RheoscopeError
from rheoscope.studio.exported_files import compress_response, export_files, mark_as_export, to_scripts
from rheoscope.studio.session import Session, TextEntry
from rheoscope.studio.single_file import journey_files, single_file
from rheoscope.studio.startup import DEFAULT_OPTIONS, StudioOptions, start_session
from rheoscope.studio.stored_example import EXAMPLE_FOLDER, PAGE_FOLDER, check_page


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
    with analysed_text(text, options) as (session, entry):
        size = write_export(folder, session, entry, page_folder)
    path = folder if page_folder is None else folder / "index.html"
    return Message("wrote {path} ({megabytes:.1f} MB)", path=str(path), megabytes=size / 1e6)


def save_single_file(
    file: Path, text: str, options: StudioOptions = DEFAULT_OPTIONS, page_folder: Path = PAGE_FOLDER
) -> str:
    """Run every analysis of the report on a text and write its page into one file, in the current language.

    Returns "wrote …" or "replaced …". A foreign file is not replaced.
    """
    check_page(page_folder)
    check_writable(file)
    with analysed_text(text, options) as (session, entry):
        page = single_file(journey_files(session, entry), entry.id, current_language(), page_folder)
    return write_report(file, lambda target: target.write_bytes(page))


@contextmanager
def analysed_text(text: str, options: StudioOptions = DEFAULT_OPTIONS) -> Iterator[tuple[Session, TextEntry]]:
    """A session inside the `with` block, and the entry of a text with the results of every analysis of the report."""
    session = start_session(options)
    try:
        yield session, run_all_analyses(session, text)
    finally:
        session.close()


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


if __name__ == "__main__":  # `make studio` writes the stored example
    import sys

    shutil.rmtree(PAGE_FOLDER / EXAMPLE_FOLDER, ignore_errors=True)
    print(save_export(PAGE_FOLDER / EXAMPLE_FOLDER, sys.argv[1], page_folder=None))
