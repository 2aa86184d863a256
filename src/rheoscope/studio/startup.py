"""Starting the studio: where it listens, who may come, what it opens on."""

import secrets
import socket
import webbrowser
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

from rheoscope.corpus.corpus_result import open_corpus
from rheoscope.opening import load
from rheoscope.report.idle_cores import use_idle_cores
from rheoscope.report.input_text import resolve_text
from rheoscope.report.studio_link import DEFAULT_PORT
from rheoscope.running.weight_files import parse_device, parse_dtype, probe_bfloat16_matmul
from rheoscope.shapes import RheoscopeError
from rheoscope.studio.corpus import LiveCorpusRun
from rheoscope.studio.model_sources import DEFAULT_SOURCE, ModelSources, default_history_file
from rheoscope.studio.safety import AccessRules, is_loopback
from rheoscope.studio.session import Limits, Session, make_model_id
from rheoscope.studio.stored_example import EXAMPLE_FOLDER, PAGE_FOLDER, load_example


@dataclass(frozen=True)
class StudioOptions:
    """What a studio opens first, how models are opened, below which directories others may be, and the corpus run that it shows."""

    model: str | None = None
    device: str | None = None
    dtype: str | None = None
    roots: Sequence[Path] = ()
    corpus_folder: Path | None = None


DEFAULT_OPTIONS = StudioOptions()
"""The model that ships, on the CPU."""


def run_command(
    options: StudioOptions,
    host: str,
    port: int | None,
    open_page: bool,
    export_folder: Path | None,
    text: str | None,
    file: Path | None,
) -> None:
    """The command: the page is served, or written as files where a folder is named."""
    check_installation(PAGE_FOLDER)
    check_options(options)
    if export_folder is not None:
        if options.corpus_folder is not None:
            raise RheoscopeError("an export holds one text and no corpus; leave out --corpus, or --export")
        from rheoscope.studio.export import save_export

        print(save_export(export_folder, resolve_text(text, file), options))
    elif text is not None or file is not None:
        raise RheoscopeError(
            "a text is typed on the page; type --export DIR too, to write the page of this one as files"
        )
    else:
        serve(options, host, port, open_page)


def serve(options: StudioOptions, host: str, port: int | None, open_page: bool) -> None:
    """Serve the page until somebody ends it."""
    import uvicorn

    from rheoscope.studio.server import create_app

    options, corpus_run = resolve_corpus(options)
    listener = bind_socket(host, port)
    token = None if is_loopback(host) else secrets.token_urlsafe(24)
    use_idle_cores()
    session = start_session(options)
    app = create_app(
        session, AccessRules(host, token), PAGE_FOLDER, load_example(PAGE_FOLDER / EXAMPLE_FOLDER), corpus_run
    )
    page_url = page_address(host, listener.getsockname()[1], token) + ("" if corpus_run is None else "#view=corpus")
    print(f"Rheoscope studio: {page_url}  (Ctrl+C ends it)", flush=True)
    if open_page:
        webbrowser.open(page_url)
    try:
        uvicorn.Server(uvicorn.Config(app, log_level="warning", server_header=False, timeout_graceful_shutdown=1)).run(
            sockets=[listener]
        )
    finally:
        session.close()


def resolve_corpus(options: StudioOptions) -> tuple[StudioOptions, LiveCorpusRun | None]:
    """The corpus run that is shown; its model is the one that is opened, unless another is named."""
    if options.corpus_folder is None:
        return options, None
    job = open_corpus(options.corpus_folder).manifest.job
    model = options.model or job.model
    return replace(options, model=model), LiveCorpusRun(
        options.corpus_folder, make_model_id(model or DEFAULT_SOURCE, job.untrained)
    )


def start_session(options: StudioOptions, limits: Limits | None = None) -> Session:
    """A session whose first model is being opened."""
    probe_bfloat16_matmul()  # before there are threads: how warnings are caught is the whole process's
    first_model = options.model or DEFAULT_SOURCE
    named_models = () if options.model is None else (options.model,)
    sources = ModelSources(named_models, tuple(options.roots), default_history_file())
    session = Session(load, sources, limits or Limits(), first_model, options.device, options.dtype)
    session.open_model(first_model)
    return session


def check_options(options: StudioOptions) -> None:
    """Refuse what cannot be opened where it was typed, before anything runs behind the page."""
    bad_root = next((root for root in options.roots if not root.is_dir()), None)
    if bad_root is not None:
        raise RheoscopeError(f"{bad_root} is no directory; type --root with one that holds models")
    parse_dtype(options.dtype, options.device)
    parse_device(options.device or "cpu")


def check_installation(page_folder: Path) -> None:
    """Refuse to start without the server's parts or without a page, and say what to type."""
    if find_spec("fastapi") is None or find_spec("uvicorn") is None:
        raise RheoscopeError("the studio needs fastapi and uvicorn; type pip install 'rheoscope[studio]'")
    if not (page_folder / "index.html").is_file():
        raise RheoscopeError("the studio's page is not built; type make studio")


def bind_socket(host: str, port: int | None) -> socket.socket:
    """A socket that listens; without a port the usual one, or a free one where that is taken."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for candidate_port in (DEFAULT_PORT, 0) if port is None else (port,):
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, candidate_port))
        except (OSError, OverflowError) as error:
            listener.close()
            reason = getattr(error, "strerror", None) or error
        else:
            return listener
    raise RheoscopeError(f"cannot listen on {host}:{port}: {reason}; type another --port, or --port 0 for a free one")


def page_address(host: str, port: int, token: str | None) -> str:
    """Where the page is, with the token where one is asked.

    >>> page_address("127.0.0.1", 8642, None), page_address("::1", 80, "secret")
    ('http://127.0.0.1:8642/', 'http://[::1]:80/?token=secret')
    """
    url_host = f"[{host}]" if ":" in host else host
    return f"http://{url_host}:{port}/" + (f"?token={token}" if token else "")
