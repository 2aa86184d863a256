"""What the page shows is true: results of the selected model, a lost server, and the fault of a link."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from rheoscope.shapes import RheoscopeError
from rheoscope.studio.model_sources import ModelSources
from rheoscope.studio.safety import AccessRules
from rheoscope.studio.server import create_app
from rheoscope.studio.session import Limits, Session
from rheoscope.studio.startup import bind_socket, server_config
from rheoscope.studio.stored_example import PAGE_FOLDER
from tests.studio import test_page
from tests.studio.cases import import_all_modules, load_small
from tests.studio.test_page import open_page, wait_for_cloud, wait_until

pytestmark = test_page.pytestmark
browser = test_page.browser


@contextmanager
def serve(load: Any, listener: socket.socket) -> Iterator[None]:
    """A server on a socket. It stops at once, like one that is killed."""
    uvicorn = pytest.importorskip("uvicorn")
    session = Session(load, ModelSources(("other",)), Limits())
    server = uvicorn.Server(server_config(create_app(session, AccessRules(), PAGE_FOLDER)))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        while not server.started:
            time.sleep(0.01)
        yield
    finally:
        server.should_exit = server.force_exit = True
        thread.join(10)
        session.close()


def test_old_results_a_lost_server_and_a_wrong_link_are_named(browser: Any) -> None:
    import_all_modules()
    gate = threading.Event()

    def load(source: str | None, **options: Any) -> Any:
        if source == "other":
            gate.wait(20)
            raise RheoscopeError("this model is refused")
        return load_small(source, **options)

    listener = bind_socket("127.0.0.1", 0)
    port = listener.getsockname()[1]
    with open_page(browser) as (page, _):
        with serve(load, listener):
            page.goto(f"http://127.0.0.1:{port}/?token=secret#view=dynamics&layer=77&text=The+keys+to+the+sea")
            wait_for_cloud(page)
            assert "token" not in page.url
            alert = page.locator("p[role=alert]")
            wait_until(page, lambda: "layer=77" in " ".join(alert.all_inner_texts()))
            assert page.locator(".results.old").count() == 0

            page.evaluate("location.hash = 'view=dynamics&model=other&text=The+keys+to+the+sea'")
            page.wait_for_selector(".results.old")
            assert "other is selected" in page.locator(".old-results").inner_text()
            gate.set()
            wait_until(page, lambda: "This model is refused" in " ".join(alert.all_inner_texts()))
            page.wait_for_selector(".results.old", state="detached")  # the last valid state stays
            assert "model=other" not in page.url
            assert "keys" in "".join(test_page.tokens(page))

            page.evaluate("location.hash = 'view=dynamics&text=A+new+text'")
            page.wait_for_selector(".results.old", state="detached")
        page.evaluate("location.hash = 'view=dynamics&text=Another+text'")
        page.wait_for_selector("p.lost")
        with serve(load_small, bind_socket("127.0.0.1", port)):
            page.wait_for_selector("p.lost", state="detached")
            page.wait_for_selector(".results.old", state="detached")
            wait_until(page, lambda: "Another" in "".join(test_page.tokens(page)))
