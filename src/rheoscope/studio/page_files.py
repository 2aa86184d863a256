"""The files of the built page, compressed once instead of for every visitor."""

import gzip
import os
from functools import lru_cache

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

COMPRESSED_SUFFIXES = (".html", ".js", ".css", ".svg")
PRELOADED_STATE = "<./api/state>; rel=preload; as=fetch; crossorigin"
"""A Link header. The browser requests the state while it still loads the script that needs it."""


@lru_cache(maxsize=32)
def compress_file(path: str, modified: float) -> bytes:
    """The contents of a file as gzip. A file that was modified since is compressed again."""
    with open(path, "rb") as file:
        return gzip.compress(file.read(), 9)


class PageFiles(StaticFiles):
    """The files of a page in a folder."""

    def file_response(
        self, full_path: "os.PathLike[str] | str", stat_result: os.stat_result, scope: Scope, status_code: int = 200
    ) -> Response:
        response = super().file_response(full_path, stat_result, scope, status_code)
        path = os.fspath(full_path)
        if path.endswith("index.html"):
            response.headers["link"] = PRELOADED_STATE
        accepts_gzip = "gzip" in Headers(scope=scope).get("accept-encoding", "")
        is_whole_file = response.status_code == 200 and "range" not in Headers(scope=scope)
        if scope["method"] != "GET" or not accepts_gzip or not is_whole_file or not path.endswith(COMPRESSED_SUFFIXES):
            return response
        compressed = Response(compress_file(path, stat_result.st_mtime), media_type=response.media_type)
        compressed.headers.update(_without_length(response.headers))
        compressed.headers["content-encoding"] = "gzip"
        compressed.headers.add_vary_header("Accept-Encoding")
        return compressed


def _without_length(headers: MutableHeaders) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name != "content-length"}
