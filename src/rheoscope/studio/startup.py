"""Start the studio: options, checks, the socket, the session and the server."""

import secrets
import socket
import sys
import webbrowser
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from rheoscope.corpus.corpus_result import open_corpus
from rheoscope.messages.advice import Advice
from rheoscope.messages.message import Message
from rheoscope.opening import DEFAULT_NAME, load
from rheoscope.report.idle_cores import share_cores
from rheoscope.report.parse_options import read_features
from rheoscope.report.studio_link import DEFAULT_PORT
from rheoscope.running.weight_files import parse_device, parse_dtype, probe_bfloat16_matmul
from rheoscope.shapes import RheoscopeError
from rheoscope.studio.content_ids import make_model_id
from rheoscope.studio.corpus import LiveCorpusRun
from rheoscope.studio.model_sources import ModelSources, default_history_file
from rheoscope.studio.safety import AccessRules, App, is_loopback
from rheoscope.studio.session import Limits, Session
from rheoscope.studio.stored_example import EXAMPLE_FOLDER, PAGE_FOLDER, check_page, load_example
from rheoscope.studio.training_runs import TrainingRuns

if TYPE_CHECKING:
    import uvicorn


@dataclass(frozen=True)
class StudioOptions:
    """The first model of a studio, how models are loaded, and what else it may open.

    `features` is a sparse dictionary of the first model. Models below `roots` may be opened from the page. `corpus_folder` is a corpus
    run to show, `runs_folder` a training run or a folder of them, whose models may be opened too.
    """

    model: str | None = None
    device: str | None = None
    dtype: str | None = None
    roots: Sequence[Path] = ()
    corpus_folder: Path | None = None
    runs_folder: Path | None = None
    features: str | None = None


DEFAULT_OPTIONS = StudioOptions()
"""The model that ships with the package, on the CPU."""
KEEP_ALIVE_SECONDS = 60
"""Seconds that a connection stays open without a request. A page that is read for a while then needs no new connections."""
N_CONCURRENT_JOBS = 4
"""Number of jobs that may compute at once: a short request, a longer one, an analysis and the story."""
SWITCH_SECONDS = 0.0005
"""Seconds that a thread of the server may hold the interpreter. With Python's default (0.005), the many short steps of a
forward pass wait behind the analyses of other threads."""


def serve(options: StudioOptions, host: str, port: int | None, open_page: bool) -> None:
    """Serve the page until the process is interrupted."""
    import uvicorn

    from rheoscope.studio.server import create_app

    options, corpus_run = resolve_corpus(options)
    listener = bind_socket(host, port)
    token = None if is_loopback(host) else secrets.token_urlsafe(24)
    share_process()
    session = start_session(options)
    runs = None if options.runs_folder is None else TrainingRuns(options.runs_folder)
    example = load_example(PAGE_FOLDER / EXAMPLE_FOLDER) if options.features is None else None  # it has no features
    app = create_app(session, AccessRules(host, token), PAGE_FOLDER, example, corpus_run, runs)
    first_view = "corpus" if corpus_run is not None else "learning" if runs is not None else ""
    hash_of_view = f"#view={first_view}" if first_view else ""
    page_url = page_address(reachable_host(host), listener.getsockname()[1], token) + hash_of_view
    print(Message("Rheoscope studio: {url}  (stop with Ctrl+C)", url=page_url), flush=True)
    if open_page:
        webbrowser.open(page_url)
    try:
        uvicorn.Server(server_config(app)).run(sockets=[listener])
    finally:
        session.close()


def share_process() -> None:
    """Divide the cores and the interpreter of this process among the threads of a server."""
    share_cores(N_CONCURRENT_JOBS)
    sys.setswitchinterval(SWITCH_SECONDS)


def server_config(app: App) -> "uvicorn.Config":
    """The configuration of the server: its connections are limited."""
    import uvicorn

    from rheoscope.studio.connections import limited_connections

    return uvicorn.Config(
        app,
        http=limited_connections(),
        ws="none",
        lifespan="off",
        log_level="warning",
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=1,
    )


def resolve_corpus(options: StudioOptions) -> tuple[StudioOptions, LiveCorpusRun | None]:
    """The corpus run to show. Unless the options name a model, the model of the run is opened."""
    if options.corpus_folder is None:
        return options, None
    job = open_corpus(options.corpus_folder).manifest.job
    model = options.model or job.model
    return replace(options, model=model), LiveCorpusRun(
        options.corpus_folder, make_model_id(model or DEFAULT_NAME, job.untrained)
    )


def start_session(options: StudioOptions, limits: Limits | None = None) -> Session:
    """A session that is loading its first model."""
    probe_bfloat16_matmul()  # before any thread starts: catching warnings changes the whole process
    first_model = options.model or DEFAULT_NAME
    named_models = () if options.model is None else (options.model,)
    run_roots = () if options.runs_folder is None else TrainingRuns(options.runs_folder).model_roots()
    sources = ModelSources(named_models, (*options.roots, *run_roots), default_history_file())
    features = None if options.features is None else read_features(options.features)
    session = Session(load, sources, limits or Limits(), first_model, options.device, options.dtype, features)
    session.open_model(first_model)
    return session


def check_options(options: StudioOptions) -> None:
    """Refuse invalid options on the command line, before the server starts."""
    bad_root = next((root for root in options.roots if not root.is_dir()), None)
    if bad_root is not None:
        raise RheoscopeError(
            Message("--root must be an existing directory, got {folder}", folder=str(bad_root)),
            Advice("", "--root DIR"),
        )
    if options.runs_folder is not None and not options.runs_folder.is_dir():
        raise RheoscopeError(
            Message("--runs must be an existing directory, got {folder}", folder=str(options.runs_folder)),
            Advice("", "--runs DIR"),
        )
    parse_dtype(options.dtype, options.device)
    parse_device(options.device or "cpu")


def check_installation(page_folder: Path) -> None:
    """Refuse to start if the server's packages or the built page are missing."""
    if find_spec("fastapi") is None or find_spec("uvicorn") is None:
        raise RheoscopeError(
            Message("the studio needs fastapi and uvicorn"), Advice("", "pip install 'rheoscope[studio]'")
        )
    check_page(page_folder)


def bind_socket(host: str, port: int | None) -> socket.socket:
    """A socket that listens. Without a port it is the default port, or a free port if that is in use."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for candidate_port in (DEFAULT_PORT, 0) if port is None else (port,):
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, candidate_port))
            listener.listen()  # from now on, the printed address can be opened
        except (OSError, OverflowError) as error:
            listener.close()
            reason = getattr(error, "strerror", None) or error
        else:
            return listener
    raise RheoscopeError(
        Message("cannot listen on {host}:{port} ({reason})", host=host, port=port, reason=str(reason)),
        Advice("", "--port 0"),
    )


def reachable_host(host: str) -> str:
    """A host that a browser can open: an address of this machine, if the server is bound to all of them.

    >>> reachable_host("127.0.0.1"), reachable_host("0.0.0.0") == "0.0.0.0"
    ('127.0.0.1', False)
    """
    family, remote_address, loopback = {
        "0.0.0.0": (socket.AF_INET, "192.0.2.1", "127.0.0.1"),
        "::": (socket.AF_INET6, "2001:db8::1", "::1"),
    }.get(host, (None, "", host))
    if family is None:
        return host
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((remote_address, 9))  # sends nothing; the system selects the address of this machine
            return str(probe.getsockname()[0])
    except OSError:
        return loopback


def page_address(host: str, port: int, token: str | None) -> str:
    """The URL of the page, with the access token if there is one.

    >>> page_address("127.0.0.1", 8642, None), page_address("::1", 80, "secret")
    ('http://127.0.0.1:8642/', 'http://[::1]:80/?token=secret')
    """
    url_host = f"[{host}]" if ":" in host else host
    return f"http://{url_host}:{port}/" + (f"?token={token}" if token else "")
