"""Models of transformers in half precision: the dtype of the checkpoint, massive tokens, and the certificate."""

import copy
from pathlib import Path

import pytest
import torch

import rheoscope as rs
from tests.cases import model, network

HALF_DTYPES = [torch.bfloat16, torch.float16]


@pytest.mark.parametrize("dtype", HALF_DTYPES, ids=str)
def test_a_model_keeps_the_dtype_of_its_checkpoint(dtype: torch.dtype, tmp_path: Path) -> None:
    import transformers as hf

    hf.LlamaForCausalLM(network("llama").config).to(dtype).save_pretrained(tmp_path)
    original = hf.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=dtype)
    loaded = rs.load(original)
    assert loaded.view.facts["dtype"] == str(dtype).removeprefix("torch.")
    assert torch.equal(loaded.run([5, 6, 7]), original(torch.tensor([[5, 6, 7]])).logits[0])


def test_massive_tokens_do_not_overflow_float16() -> None:
    """The squared coordinates of a massive token exceed 65504, so its norm in float16 would be infinite."""
    massive = copy.deepcopy(network("llama"))
    with torch.no_grad():
        massive.model.embed_tokens.weight[5] *= 3000
    certificate = rs.load(massive, dtype="float16").view.facts["certificate"]
    assert certificate.operators_error < 1e-3


CERTIFICATES = {
    "float32": "exact on 8 tokens in float32: weights off by ",
    "bfloat16": "exact up to the rounding of bfloat16 (7.8e-03) on 8 tokens: weights off by ",
    "float16": "exact up to the rounding of float16 (9.8e-04) on 8 tokens: weights off by ",
}


@pytest.mark.parametrize("dtype", CERTIFICATES)
def test_the_certificate_names_its_dtype_and_rounding(dtype: str) -> None:
    certificate = str(model("own", getattr(torch, dtype)).view.facts["certificate"])
    assert certificate.startswith(CERTIFICATES[dtype])
