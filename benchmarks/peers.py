"""Other tools that look into a model, on the same weights; `make peers` installs them apart and runs trace.py beside them."""

import tempfile
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import torch

INSTALLED = find_spec("transformer_lens") is not None and find_spec("nnsight") is not None

See = Callable[[torch.Tensor], object]


def transformer_lens(net: Any) -> See:
    """run_with_cache: every activation of every layer."""
    return torch.no_grad()(bridged(net).run_with_cache)


def bridged(net: Any) -> Any:
    """The same weights in TransformerLens."""
    from tokenizers import Tokenizer, models
    from transformer_lens.model_bridge import TransformerBridge
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({"a": 0, "<e>": 1}, unk_token="<e>"))  # it asks for a tokenizer; it is given ids
    with tempfile.TemporaryDirectory() as folder:
        PreTrainedTokenizerFast(
            tokenizer_object=words, eos_token="<e>", bos_token="<e>", pad_token="<e>"
        ).save_pretrained(folder)
        net.save_pretrained(folder)
        return TransformerBridge.boot_transformers(folder, device="cpu")


def nnsight(net: Any) -> See:
    """The residual stream and the weights of every layer, by hooks on an eager copy."""
    from nnsight import NNsight

    with tempfile.TemporaryDirectory() as folder:
        net.save_pretrained(folder)
        traced = NNsight(type(net).from_pretrained(folder, attn_implementation="eager").eval())

    @torch.no_grad()
    def see(ids: torch.Tensor) -> object:
        seen: list[Any] = []
        with traced.trace(ids):
            for block in traced.transformer.h:
                seen.append((block.attn.output[1].save(), block.output.save()))
        return seen

    return see


def eager(net: Any) -> See:
    """Hugging Face's own way: eager attention, all hidden states and weights returned."""
    with tempfile.TemporaryDirectory() as folder:
        net.save_pretrained(folder)
        copy = type(net).from_pretrained(folder, attn_implementation="eager").eval()

    @torch.no_grad()
    def see(ids: torch.Tensor) -> object:
        return copy(input_ids=ids, output_hidden_states=True, output_attentions=True, use_cache=False)

    return see


SEERS = {"eager, all states and weights": eager} | (
    {"TransformerLens run_with_cache": transformer_lens, "nnsight, stream and weights": nnsight} if INSTALLED else {}
)
