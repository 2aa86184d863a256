"""The command `rheoscope studio`: serve the page, or export the page of one text."""

from pathlib import Path

from rheoscope.messages.advice import Advice
from rheoscope.messages.message import Message
from rheoscope.report.input_text import resolve_text
from rheoscope.shapes import RheoscopeError
from rheoscope.studio.export import save_export, save_single_file
from rheoscope.studio.startup import StudioOptions, check_installation, check_options, serve
from rheoscope.studio.stored_example import PAGE_FOLDER


def run_command(
    options: StudioOptions,
    host: str,
    port: int | None,
    open_page: bool,
    export_path: Path | None,
    text: str | None,
    file: Path | None,
) -> None:
    """Serve the page. With `export_path`, write the page of one text instead: one file (NAME.html) or a folder."""
    check_installation(PAGE_FOLDER)
    check_options(options)
    if export_path is not None:
        shown_folders = {"--corpus": options.corpus_folder, "--runs": options.runs_folder}
        other_option = next((name for name, folder in shown_folders.items() if folder is not None), None)
        if other_option is not None:
            raise RheoscopeError(
                Message(
                    "an export contains one text, so --export and {option} cannot be combined", option=other_option
                ),
                Advice("", f"--export DIR or {other_option} DIR"),
            )
        save = save_single_file if export_path.suffix == ".html" else save_export
        print(save(export_path, resolve_text(text, file), options, PAGE_FOLDER))
    elif text is not None or file is not None:
        raise RheoscopeError(
            Message("the studio takes its text on the page; --text and --file are for an export"),
            Advice("", "--export DIR"),
        )
    else:
        serve(options, host, port, open_page)
