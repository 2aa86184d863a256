"""A thread-safe cache that evicts the least recently used entries beyond a number of bytes."""

import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import Any


class ByteCache:
    """A dictionary that evicts the least recently used entries when it holds more than `max_bytes`.

    >>> cache = ByteCache(10)
    >>> cache.put("a", "first", 6); cache.put("b", "second", 6)
    >>> cache.get("a"), cache.get("b"), cache.total_bytes
    (None, 'second', 6)
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes, self.total_bytes = max_bytes, 0
        self._lock = threading.Lock()
        self._entries: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()

    def get(self, key: Hashable) -> Any:
        with self._lock:
            if key not in self._entries:
                return None
            self._entries.move_to_end(key)
            return self._entries[key][0]

    def put(self, key: Hashable, value: Any, n_bytes: int) -> None:
        """Store a value. The newest entry stays even if it alone exceeds `max_bytes`."""
        with self._lock:
            self.total_bytes += n_bytes - self._entries.pop(key, (None, 0))[1]
            self._entries[key] = value, n_bytes
            while self.total_bytes > self.max_bytes and len(self._entries) > 1:
                self.total_bytes -= self._entries.popitem(last=False)[1][1]

    def __len__(self) -> int:
        return len(self._entries)
