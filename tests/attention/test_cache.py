"""A cache against the obvious way: all keys put side by side, also where gradients are kept."""

import torch

import rheoscope as rs
from rheoscope.attention.cache import Cache
from tests.attention.cases import gap, random


def test_a_cache_keeps_keys_of_its_length_and_grows_by_doubling() -> None:
    k = random(1, 1, 2, 20, 3)
    cache, sizes = Cache(), set()
    for at in range(20):
        keys, values = cache.extend(k[:, :, at : at + 1], -k[:, :, at : at + 1])
        assert torch.equal(keys, k[:, :, : at + 1])
        assert torch.equal(values, -keys)
        sizes.add(cache.past[0].shape[-2])
    assert sizes == {1, 2, 4, 8, 16, 32}


def test_a_cache_has_room_from_the_start() -> None:
    cache, k = Cache(room=6), random(1, 1, 2, 6, 3)
    for at in range(6):
        cache.extend(k[:, :, at : at + 1], k[:, :, at : at + 1])
        assert cache.past[0].shape[-2] == 6


def test_a_cache_goes_on_with_other_rows() -> None:
    k, more = random(1, 2, 2, 3, 4), random(2, 4, 2, 1, 4)
    cache = Cache()
    cache.extend(k, -k)
    cache.spread(2)
    cache.take(torch.tensor([1, 0, 3, 3]))
    keys, values = cache.extend(more, -more)
    assert torch.equal(keys, torch.cat([k[[0, 0, 1, 1]], more], 2))
    assert torch.equal(values, -keys)
    assert len(cache) == 4


def test_gradients_go_through_a_cache() -> None:
    """Nothing that an earlier token's graph remembers is written over."""
    layer, x = rs.nn.MultiHeadAttention(16, heads=4, kv_heads=2).double(), random(3, 2, 6, 16)
    found = []
    for steps in ((6,), (1,) * 6, (3, 1, 2)):
        layer.zero_grad()
        cache = rs.nn.Cache()
        torch.cat([layer(part, mask="causal", cache=cache) for part in x.split(steps, 1)], 1).square().sum().backward()
        found.append(torch.cat([p.grad.flatten() for p in layer.parameters()]))
    layer.zero_grad()
    layer(x, mask="causal").square().sum().backward()
    own = torch.cat([p.grad.flatten() for p in layer.parameters()])
    assert max(gap(one, own) for one in found) < 1e-12
