"""The GPU is the default device, a compiled layer equals the plain one, and a full GPU raises one line."""

from collections.abc import Iterator

import jaxtyping
import pytest
import torch

import rheoscope as rs
from rheoscope.attention.mechanism import Mechanism
from rheoscope.attention.modules import MultiHeadAttention
from rheoscope.attention.zoo import ZOO
from tests.cases import network, text

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor"),  # torch's compiler reads it for every tensor
]


@pytest.fixture
def unchecked() -> Iterator[None]:
    """Shape checks break the graphs of `torch.compile`."""
    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", before)


def test_models_are_loaded_on_the_gpu_by_default() -> None:
    model = rs.load()
    assert model.device.type == "cuda"
    assert "cuda" in str(model.view.facts["certificate"])
    assert rs.load(device="cpu").device.type == "cpu"


@pytest.mark.parametrize("name", ["scaled_dot", "metric", "cosine", "sigmoid"])
def test_compiled_layer_equals_the_plain_one(name: str, unchecked: None) -> None:
    torch.manual_seed(0)
    plain = MultiHeadAttention(64, 2, mechanism=ZOO[name]()).cuda().bfloat16()
    x = torch.randn(2, 128, 64, device="cuda", dtype=torch.bfloat16)
    with torch.no_grad():
        result, expected = torch.compile(plain)(x).float(), plain(x).float()
    assert float((result - expected).norm() / expected.norm()) < 2e-2


def test_text_that_does_not_fit_raises_and_the_next_text_works() -> None:
    torch.cuda.empty_cache()
    model = rs.load(network("gpt2", torch.float32).cuda())
    total_memory = torch.cuda.mem_get_info()[1]
    torch.cuda.set_per_process_memory_fraction(min(1.0, (torch.cuda.memory_reserved() + 2**26) / total_memory))
    try:
        with pytest.raises(rs.RheoscopeError, match=r"a text of this length needs .*; type device='cpu'"):
            model.trace([text(0, 16)] * 2**16)
        assert len(model.trace(text(0, 12))) == 12
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


def test_scores_are_never_stored() -> None:
    """16,384 tokens in 8 heads: a table of scores alone has 4 GiB in bfloat16."""
    q, k, v = (torch.randn(1, 8, 16_384, 64, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    for name in ("scaled_dot", "sigmoid", "entmax15", "linear"):
        mechanism: Mechanism = ZOO[name]()
        assert mechanism.attend(q, k, v).shape == v.shape
    assert torch.cuda.max_memory_allocated() - before < 2**30
