"""Other interpretability tools on the same weights. `make peers` installs them in their own venv and runs trace.py."""

import tempfile
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import torch

INSTALLED = find_spec("transformer_lens") is not None and find_spec("nnsight") is not None

TraceFunction = Callable[[torch.Tensor], object]


def transformer_lens(net: Any) -> TraceFunction:
    """TransformerLens: `run_with_cache` stores every activation of every layer."""
    return torch.no_grad()(transformer_bridge(net).run_with_cache)


def transformer_bridge(net: Any) -> Any:
    """The same weights in TransformerLens."""
    from tokenizers import Tokenizer, models
    from transformer_lens.model_bridge import TransformerBridge
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.WordLevel({"a": 0, "<e>": 1}, unk_token="<e>"))  # required, but only ids are used
    with tempfile.TemporaryDirectory() as folder:
        PreTrainedTokenizerFast(
            tokenizer_object=tokenizer, eos_token="<e>", bos_token="<e>", pad_token="<e>"
        ).save_pretrained(folder)
        net.save_pretrained(folder)
        return TransformerBridge.boot_transformers(folder, device="cpu")


def nnsight(net: Any) -> TraceFunction:
    """nnsight: the residual stream and the attention weights of every layer, by hooks on an eager copy."""
    from nnsight import NNsight

    with tempfile.TemporaryDirectory() as folder:
        net.save_pretrained(folder)
        traced = NNsight(type(net).from_pretrained(folder, attn_implementation="eager").eval())

    @torch.no_grad()
    def run(ids: torch.Tensor) -> object:
        outputs: list[Any] = []
        with traced.trace(ids):
            for block in traced.transformer.h:
                outputs.append((block.attn.output[1].save(), block.output.save()))
        return outputs

    return run


def eager(net: Any) -> TraceFunction:
    """Hugging Face: eager attention that returns all hidden states and attention weights."""
    with tempfile.TemporaryDirectory() as folder:
        net.save_pretrained(folder)
        copy = type(net).from_pretrained(folder, attn_implementation="eager").eval()

    @torch.no_grad()
    def run(ids: torch.Tensor) -> object:
        return copy(input_ids=ids, output_hidden_states=True, output_attentions=True, use_cache=False)

    return run


TRACERS = {"eager, all states and weights": eager} | (
    {"TransformerLens run_with_cache": transformer_lens, "nnsight, stream and weights": nnsight} if INSTALLED else {}
)
