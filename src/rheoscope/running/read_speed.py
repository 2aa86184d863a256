"""The speed at which this machine reads weights from its disk, past the cache of the system."""

import os
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rheoscope.running.read_buffers import CHUNK_BYTES
from rheoscope.running.streamed_weights import READERS
from rheoscope.running.tensor_files import TensorFile

SAMPLE_BYTES = 2**28
"""At most this many bytes are read to measure the speed."""
WRITTEN_BYTES = 2**26
"""The size of the temporary file, where there are no weights to read."""


def measure_read_speed(source: Path) -> tuple[float, Path]:
    """Bytes per second of the largest safetensors file of a directory, or of a temporary file, and which file it was.

    The file is read as a streamed model reads it, in several threads. The system is asked to drop it from its cache first.
    """
    files = sorted(source.glob("*.safetensors"), key=lambda file: file.stat().st_size) if source.is_dir() else []
    if files:
        return read_speed(files[-1]), files[-1]
    with tempfile.NamedTemporaryFile(prefix="rheoscope-speed-") as file:
        for _ in range(WRITTEN_BYTES // CHUNK_BYTES):
            file.write(os.urandom(CHUNK_BYTES))
        file.flush()
        os.fsync(file.fileno())
        return read_speed(Path(file.name)), Path(tempfile.gettempdir())


def read_speed(path: Path) -> float:
    """Bytes per second at which the first quarter of a gigabyte of a file is read."""
    file = TensorFile(path)
    n_bytes = min(SAMPLE_BYTES, path.stat().st_size)
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(file.descriptor, 0, n_bytes, os.POSIX_FADV_DONTNEED)

    buffers = threading.local()

    def allocate() -> None:
        buffers.bytes = memoryview(bytearray(CHUNK_BYTES))

    def read(start: int) -> None:
        file.read_into(buffers.bytes[: n_bytes - start], start)

    start_time = time.perf_counter()
    with ThreadPoolExecutor(READERS, initializer=allocate) as pool:
        list(pool.map(read, range(0, n_bytes, CHUNK_BYTES)))
    return n_bytes / max(time.perf_counter() - start_time, 1e-9)
