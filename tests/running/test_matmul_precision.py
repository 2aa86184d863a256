"""A model is proved in full float32, also in a training loop that multiplies in TF32."""

from collections.abc import Iterator

import pytest
import torch
from torch import nn

import rheoscope as rs
from rheoscope.running.matmul_precision import BACKENDS, full_float32_products
from tests.pretrained.cases import network


@pytest.fixture(params=["highest", "high", "medium"])
def chosen(request: pytest.FixtureRequest) -> Iterator[str]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(request.param)
    yield request.param
    torch.set_float32_matmul_precision(before)


def precisions() -> list[str]:
    return [backend.fp32_precision for backend in BACKENDS]


def test_opening_runs_the_network_in_full_float32_and_restores_the_choice(chosen: str) -> None:
    before, during = precisions(), list[list[str]]()
    net = network("gpt2")
    hooks = [module.register_forward_pre_hook(lambda *_: during.append(precisions())) for module in net.modules()]
    try:
        rs.load(net)
    finally:
        for hook in hooks:
            hook.remove()
    assert during
    assert all(seen == ["ieee", "ieee"] for seen in during)
    assert precisions() == before
    assert torch.get_float32_matmul_precision() == chosen


def test_the_choice_returns_after_an_error(chosen: str) -> None:
    with pytest.raises(ZeroDivisionError), full_float32_products():
        raise ZeroDivisionError
    assert torch.get_float32_matmul_precision() == chosen


@pytest.mark.gpu
def test_a_wide_network_opens_while_the_process_multiplies_in_tf32() -> None:
    """TF32 moves the points of this network by more than float32 explains."""
    from rheoscope.models.config import Config
    from rheoscope.models.transformer import build

    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        torch.manual_seed(0)
        config = Config(vocabulary=512, width=768, depth=4, heads=12, context=128)
        net: nn.Module = build(config).cuda()
        assert rs.load(net).view.facts["certificate"].closure_error < 1e-4
    finally:
        torch.set_float32_matmul_precision(before)
