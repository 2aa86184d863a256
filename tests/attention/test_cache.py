"""A cache equals concatenating all keys, also with gradients."""

import torch

import rheoscope as rs
from rheoscope.attention.cache import Cache
from tests.attention.cases import gap, random


def test_cache_returns_all_keys_and_doubles_its_buffers() -> None:
    k = random(1, 1, 2, 20, 3)
    cache, sizes = Cache(), set()
    for i in range(20):
        keys, values = cache.extend(k[:, :, i : i + 1], -k[:, :, i : i + 1])
        assert torch.equal(keys, k[:, :, : i + 1])
        assert torch.equal(values, -keys)
        sizes.add(cache.buffers[0].shape[-2])
    assert sizes == {1, 2, 4, 8, 16, 32}


def test_cache_with_capacity_does_not_grow() -> None:
    cache, k = Cache(capacity=6), random(1, 1, 2, 6, 3)
    for i in range(6):
        cache.extend(k[:, :, i : i + 1], k[:, :, i : i + 1])
        assert cache.buffers[0].shape[-2] == 6


def test_cache_repeats_and_selects_texts() -> None:
    k, new_k = random(1, 2, 2, 3, 4), random(2, 4, 2, 1, 4)
    cache = Cache()
    cache.extend(k, -k)
    cache.repeat_texts(2)
    cache.select_texts(torch.tensor([1, 0, 3, 3]))
    keys, values = cache.extend(new_k, -new_k)
    assert torch.equal(keys, torch.cat([k[[0, 0, 1, 1]], new_k], 2))
    assert torch.equal(values, -keys)
    assert len(cache) == 4


def test_gradients_flow_through_a_cache() -> None:
    """Tensors that the graph of an earlier token needs are never overwritten."""
    layer, x = rs.nn.MultiHeadAttention(16, heads=4, kv_heads=2).double(), random(3, 2, 6, 16)
    cached_gradients = []
    for steps in ((6,), (1,) * 6, (3, 1, 2)):
        layer.zero_grad()
        cache = rs.nn.Cache()
        torch.cat([layer(part, mask="causal", cache=cache) for part in x.split(steps, 1)], 1).square().sum().backward()
        cached_gradients.append(torch.cat([p.grad.flatten() for p in layer.parameters()]))
    layer.zero_grad()
    layer(x, mask="causal").square().sum().backward()
    expected = torch.cat([p.grad.flatten() for p in layer.parameters()])
    assert max(gap(gradient, expected) for gradient in cached_gradients) < 1e-12
