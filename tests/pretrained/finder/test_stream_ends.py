"""The unembedding, read from what its product reads, equals the one that is read from logits."""

from typing import Any
from unittest.mock import patch

import pytest
import torch
import transformers as hf

from rheoscope.pretrained.finder import describe_network, stream_ends
from rheoscope.pretrained.finder.stream_ends import Unembedding
from rheoscope.pretrained.proven_model import proven_model
from tests.pretrained.cases import gap, randomised
from tests.pretrained.finder.networks import build
from tests.pretrained.finder.test_repeated_layers import marian, t5


def tied_t5() -> Any:
    """T5 with one table for both ends, whose logits have a factor."""
    sizes = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_heads": 4, "num_layers": 1, "vocab_size": 61}
    return hf.T5ForConditionalGeneration(hf.T5Config(**sizes, scale_decoder_outputs=True))


def biased_marian() -> Any:
    network = marian()
    network.final_logits_bias.normal_(generator=torch.Generator().manual_seed(0))
    return network


PAIRS = {"t5": t5, "tied t5": tied_t5, "marian": biased_marian}
NETWORKS = ("cohere", "granite", "olmo2", "phi", "gptj", "bloom")
"""Networks with factors, with a bias of the unembedding, and with neither."""


def unembeddings(network: Any, monkeypatch: pytest.MonkeyPatch) -> list[Unembedding]:
    """The unembedding of a network from its product, and from its logits."""
    results, read = list[Unembedding](), stream_ends.read_unembedding

    def read_twice(*args: Any) -> Unembedding:
        results.append(read(*args))
        with patch.object(stream_ends, "_at_product", return_value=None):
            results.append(read(*args))
        return results[0]

    monkeypatch.setattr(describe_network, "read_unembedding", read_twice)
    proven_model(network, None, "a network", lambda *_: None, lambda *_: None, False)
    return results


@torch.no_grad()
@pytest.mark.parametrize("name", [*PAIRS, *NETWORKS])
def test_the_product_has_the_unembedding_of_the_logits(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    products, read = list[Any](), stream_ends._at_product
    monkeypatch.setattr(stream_ends, "_at_product", lambda *args: products.append(read(*args)) or products[-1])
    fast, slow = unembeddings(build(name) if name in NETWORKS else randomised(PAIRS[name]()), monkeypatch)
    assert products[0] is fast
    assert fast.scale == pytest.approx(slow.scale, rel=1e-4)
    assert (fast.bias is None) is (slow.bias is None)
    if fast.bias is not None and slow.bias is not None:
        assert gap(fast.bias, slow.bias) < 1e-4


@torch.no_grad()
def test_capped_logits_are_compared_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    fast, slow = unembeddings(build("gemma2"), monkeypatch)
    assert fast.scale == slow.scale == 1
