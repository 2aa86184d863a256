"""What is kept for the next who asks: newest last, at most so many bytes."""

import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import Any


class Kept:
    """A dictionary that forgets what was used longest ago when it holds more than `most` bytes.

    >>> kept = Kept(10)
    >>> kept.put("a", "first", 6); kept.put("b", "second", 6)
    >>> kept.get("a"), kept.get("b"), kept.bytes
    (None, 'second', 6)
    """

    def __init__(self, most: int) -> None:
        self.most, self.bytes = most, 0
        self._lock = threading.Lock()
        self._held: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()

    def get(self, key: Hashable) -> Any:
        with self._lock:
            if key not in self._held:
                return None
            self._held.move_to_end(key)
            return self._held[key][0]

    def put(self, key: Hashable, value: Any, size: int) -> None:
        """Keep a value; the newest stays even where it is larger than all that may be kept."""
        with self._lock:
            self.bytes += size - self._held.pop(key, (None, 0))[1]
            self._held[key] = value, size
            while self.bytes > self.most and len(self._held) > 1:
                self.bytes -= self._held.popitem(last=False)[1][1]

    def __len__(self) -> int:
        return len(self._held)
