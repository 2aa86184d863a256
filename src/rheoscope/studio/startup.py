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
from rheoscope.report.input_text import text_of
from rheoscope.report.studio_link import PORT
from rheoscope.running.weight_files import device_of, dtype_of, settle_half_precision
from rheoscope.shapes import RheoscopeError
from rheoscope.studio.corpus import Run
from rheoscope.studio.model_sources import DEFAULT, Sources, memory_file
from rheoscope.studio.safety import Rules, is_loopback
from rheoscope.studio.session import Limits, Session, model_id
from rheoscope.studio.stored_example import EXAMPLE, STATIC, stored_in


@dataclass(frozen=True)
class Opening:
    """What a studio opens first, how models are opened, below which directories others may be, and the corpus run that it shows."""

    model: str | None = None
    device: str | None = None
    dtype: str | None = None
    roots: Sequence[Path] = ()
    corpus: Path | None = None


FIRST = Opening()
"""The model that ships, on the CPU."""


def run(
    opening: Opening,
    host: str,
    port: int | None,
    open_page: bool,
    export: Path | None,
    text: str | None,
    file: Path | None,
) -> None:
    """The command: the page is served, or written as files where a folder is named."""
    check_built(STATIC)
    check(opening)
    if export is not None:
        if opening.corpus is not None:
            raise RheoscopeError("an export holds one text and no corpus; leave out --corpus, or --export")
        from rheoscope.studio.export import save

        print(save(export, text_of(text, file), opening))
    elif text is not None or file is not None:
        raise RheoscopeError(
            "a text is typed on the page; type --export DIR too, to write the page of this one as files"
        )
    else:
        start(opening, host, port, open_page)


def start(opening: Opening, host: str, port: int | None, open_page: bool) -> None:
    """Serve the page until somebody ends it."""
    import uvicorn

    from rheoscope.studio.server import create

    opening, run = with_corpus(opening)
    listening = bound(host, port)
    token = None if is_loopback(host) else secrets.token_urlsafe(24)
    use_idle_cores()
    session = opened(opening)
    app = create(session, Rules(host, token), STATIC, stored_in(STATIC / EXAMPLE), run)
    page = address(host, listening.getsockname()[1], token) + ("" if run is None else "#view=corpus")
    print(f"Rheoscope studio: {page}  (Ctrl+C ends it)", flush=True)
    if open_page:
        webbrowser.open(page)
    try:
        uvicorn.Server(uvicorn.Config(app, log_level="warning", server_header=False, timeout_graceful_shutdown=1)).run(
            sockets=[listening]
        )
    finally:
        session.close()


def with_corpus(opening: Opening) -> tuple[Opening, Run | None]:
    """The corpus run that is shown; its model is the one that is opened, unless another is named."""
    if opening.corpus is None:
        return opening, None
    job = open_corpus(opening.corpus).manifest.job
    model = opening.model or job.model
    return replace(opening, model=model), Run(opening.corpus, model_id(model or DEFAULT, job.untrained))


def opened(opening: Opening, limits: Limits | None = None) -> Session:
    """A session whose first model is being opened."""
    settle_half_precision()  # before there are threads: how warnings are caught is the whole process's
    first = opening.model or DEFAULT
    named = () if opening.model is None else (opening.model,)
    sources = Sources(named, tuple(opening.roots), memory_file())
    session = Session(load, sources, limits or Limits(), first, opening.device, opening.dtype)
    session.open(first)
    return session


def check(opening: Opening) -> None:
    """Refuse what cannot be opened where it was typed, before anything runs behind the page."""
    wrong = next((root for root in opening.roots if not root.is_dir()), None)
    if wrong is not None:
        raise RheoscopeError(f"{wrong} is no directory; type --root with one that holds models")
    dtype_of(opening.dtype, opening.device)
    device_of(opening.device or "cpu")


def check_built(static: Path) -> None:
    """Refuse to start without the server's parts or without a page, and say what to type."""
    if find_spec("fastapi") is None or find_spec("uvicorn") is None:
        raise RheoscopeError("the studio needs fastapi and uvicorn; type pip install 'rheoscope[studio]'")
    if not (static / "index.html").is_file():
        raise RheoscopeError("the studio's page is not built; type make studio")


def bound(host: str, port: int | None) -> socket.socket:
    """A socket that listens; without a port the usual one, or a free one where that is taken."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for one in (PORT, 0) if port is None else (port,):
        listening = socket.socket(family, socket.SOCK_STREAM)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((host, one))
        except (OSError, OverflowError) as error:
            listening.close()
            reason = getattr(error, "strerror", None) or error
        else:
            return listening
    raise RheoscopeError(f"cannot listen on {host}:{port}: {reason}; type another --port, or --port 0 for a free one")


def address(host: str, port: int, token: str | None) -> str:
    """Where the page is, with the token where one is asked.

    >>> address("127.0.0.1", 8642, None), address("::1", 80, "secret")
    ('http://127.0.0.1:8642/', 'http://[::1]:80/?token=secret')
    """
    name = f"[{host}]" if ":" in host else host
    return f"http://{name}:{port}/" + (f"?token={token}" if token else "")
