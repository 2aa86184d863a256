"""What is kept stays below its bytes, whoever asks."""

from hypothesis import given, settings
from hypothesis import strategies as st

from rheoscope.studio.byte_cache import ByteCache


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 60), st.booleans()), max_size=40))
@settings(max_examples=25)
def test_the_oldest_goes_first_and_no_byte_is_counted_twice(steps: list[tuple[int, int, bool]]) -> None:
    kept = ByteCache(100)
    twin: dict[int, int] = {}
    for key, size, looked in steps:
        if looked:
            assert kept.get(key) == twin.get(key)
            if key in twin:
                twin[key] = twin.pop(key)
            continue
        kept.put(key, size, size)
        twin.pop(key, None)
        twin[key] = size
        while sum(twin.values()) > 100:
            twin.pop(next(iter(twin)))
    assert kept.total_bytes == sum(twin.values()) <= 100
    assert len(kept) == len(twin)


def test_what_is_larger_than_everything_is_kept_alone() -> None:
    kept = ByteCache(10)
    kept.put("a", 1, 5)
    kept.put("b", 2, 50)
    assert (kept.get("a"), kept.get("b")) == (None, 2)
