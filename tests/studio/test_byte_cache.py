"""The byte cache evicts the least recently used entries and counts bytes exactly."""

from hypothesis import given, settings
from hypothesis import strategies as st

from rheoscope.studio.byte_cache import ByteCache


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 60), st.booleans()), max_size=40))
@settings(max_examples=25)
def test_the_least_recently_used_entry_is_evicted_first(steps: list[tuple[int, int, bool]]) -> None:
    cache = ByteCache(100)
    expected: dict[int, int] = {}
    for key, size, is_read in steps:
        if is_read:
            assert cache.get(key) == expected.get(key)
            if key in expected:
                expected[key] = expected.pop(key)
            continue
        cache.put(key, size, size)
        expected.pop(key, None)
        expected[key] = size
        while sum(expected.values()) > 100:
            expected.pop(next(iter(expected)))
    assert cache.total_bytes == sum(expected.values()) <= 100
    assert len(cache) == len(expected)


def test_an_entry_larger_than_the_cache_is_stored_alone() -> None:
    cache = ByteCache(10)
    cache.put("a", 1, 5)
    cache.put("b", 2, 50)
    assert (cache.get("a"), cache.get("b")) == (None, 2)
