"""Shared by the tests of pretrained models: a tiny model of every family with random weights, gains and biases.

Initial gains of 1 and biases of 0 hide errors, so no parameter keeps its initial value. A case is built once per session.
"""

import copy
import inspect
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, wraps
from pathlib import Path
from typing import Any

import torch
import transformers as hf
from torch import Generator, Tensor

import rheoscope as rs
from tests.place import PLACE

torch.set_num_threads(1)
hf.logging.set_verbosity_error()
hf.logging.disable_progress_bar()

VOCABULARY, CONTEXT, LENGTH = 40, 64, 18
SPECIAL = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
PLAIN = {
    "hidden_size": 32,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": CONTEXT,
    **SPECIAL,
}
GROUPED = {**PLAIN, "num_key_value_heads": 2}
OPT = {key: value for key, value in PLAIN.items() if key != "intermediate_size"} | {
    "ffn_dim": 24,
    "word_embed_proj_dim": 32,
}
GPT2 = {"n_layer": 2, "n_head": 4, "n_embd": 32, "vocab_size": VOCABULARY, "n_positions": CONTEXT, **SPECIAL}
GEMMA = {
    **GROUPED,
    "num_hidden_layers": 3,
    "head_dim": 16,
    "sliding_window": 4,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    "query_pre_attn_scalar": 20,
}


def rope(kind: str, **more: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_theta": 100.0, "rope_type": kind, **more}}


def llama(**more: Any) -> Any:
    return hf.LlamaForCausalLM(hf.LlamaConfig(**GROUPED, **more))


CASES: dict[str, Callable[[], Any]] = {
    "gpt2": lambda: hf.GPT2LMHeadModel(hf.GPT2Config(**GPT2)),
    "gpt2_by_depth": lambda: hf.GPT2LMHeadModel(
        hf.GPT2Config(**GPT2, scale_attn_by_inverse_layer_idx=True, tie_word_embeddings=False)
    ),
    "gpt2_unscaled": lambda: hf.GPT2LMHeadModel(hf.GPT2Config(**GPT2, scale_attn_weights=False)),
    "llama": lambda: llama(attention_bias=True, **rope("default")),
    "llama_linear": lambda: llama(**rope("linear", factor=4.0)),
    "llama_yarn": lambda: llama(**rope("yarn", factor=4.0, original_max_position_embeddings=16)),
    "llama_three": lambda: llama(
        **rope("llama3", factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=16)
    ),
    "mistral": lambda: hf.MistralForCausalLM(hf.MistralConfig(**GROUPED, sliding_window=5, head_dim=16)),
    "qwen2": lambda: hf.Qwen2ForCausalLM(
        hf.Qwen2Config(
            **GROUPED, use_sliding_window=True, sliding_window=4, layer_types=["sliding_attention", "full_attention"]
        )
    ),
    "qwen3": lambda: hf.Qwen3ForCausalLM(hf.Qwen3Config(**GROUPED, head_dim=16, attention_bias=True)),
    "neox": lambda: hf.GPTNeoXForCausalLM(hf.GPTNeoXConfig(**PLAIN, rotary_pct=0.5)),
    "neox_sequential": lambda: hf.GPTNeoXForCausalLM(hf.GPTNeoXConfig(**PLAIN, use_parallel_residual=False)),
    "opt": lambda: hf.OPTForCausalLM(hf.OPTConfig(**OPT)),
    "opt_post": lambda: hf.OPTForCausalLM(hf.OPTConfig(**OPT, do_layer_norm_before=False)),
    "opt_projected": lambda: hf.OPTForCausalLM(
        hf.OPTConfig(**OPT | {"word_embed_proj_dim": 12}, do_layer_norm_before=False)
    ),
    "gemma3": lambda: hf.Gemma3ForCausalLM(hf.Gemma3TextConfig(**GEMMA)),
    "gemma3_capped": lambda: hf.Gemma3ForCausalLM(hf.Gemma3TextConfig(**GEMMA, final_logit_softcapping=3.0)),
    "phi3": lambda: hf.Phi3ForCausalLM(hf.Phi3Config(**GROUPED, sliding_window=6)),
    "phi3_partial": lambda: hf.Phi3ForCausalLM(hf.Phi3Config(**GROUPED, **rope("default", partial_rotary_factor=0.5))),
    "bert": lambda: hf.BertForMaskedLM(hf.BertConfig(**PLAIN)),
    "bert_bare": lambda: hf.BertModel(hf.BertConfig(**PLAIN)),
    "roberta": lambda: hf.RobertaForMaskedLM(hf.RobertaConfig(**PLAIN | {"pad_token_id": 1, "bos_token_id": 0})),
}
EVERY = list(CASES)
BIDIRECTIONAL = {"bert", "bert_bare", "roberta"}
POST_NORM = {"opt_post", "opt_projected", "bert", "bert_bare", "roberta"}
PARALLEL = {"neox"}
ISLANDS = [name for name in EVERY if not name.startswith(("gpt2", "opt", "bert", "roberta"))]
"""Models that compute some steps in float32 whatever their dtype: rotary angles (all of these), RMSNorm (all but NeoX)."""
KINDS = [
    name for name in EVERY if name not in {"gpt2_unscaled", "llama_linear", "llama_three", "gemma3_capped", "bert_bare"}
]
"""One case for each way of describing a model, for tests that only concern the code that runs it."""
CAUSAL = [name for name in EVERY if name not in BIDIRECTIONAL]
WITH_LOGITS = [name for name in EVERY if name != "bert_bare"]


def random(seed: int, *shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=Generator().manual_seed(seed), dtype=torch.float64).to(PLACE, dtype)


@torch.no_grad()
def randomised(network: Any, seed: int = 0, size: float = 0.25) -> Any:
    """Add noise to every free parameter: enough for sharp attention, and for gains and biases to matter."""
    generator = Generator().manual_seed(seed)
    for x in (x for x in network.parameters() if x.requires_grad):  # a table of sines is none
        x.add_(torch.randn(x.shape, generator=generator) * size)
    return network.eval()


def once(make: Callable[..., Any]) -> Callable[..., Any]:
    """Call the function once per session for each set of arguments, however they are passed."""
    cached_make, signature = cache(make), inspect.signature(make)

    @wraps(make)
    def call(*args: Any, **kw: Any) -> Any:
        arguments = signature.bind(*args, **kw)
        arguments.apply_defaults()
        return cached_make(*arguments.args)

    return call


@once
def network(name: str, dtype: torch.dtype = torch.float32) -> Any:
    """The Hugging Face model of a case. It is shared, so change only a copy (`changed`)."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        built = randomised(CASES[name]())
    return built.to(PLACE, dtype)


@once
def model(name: str, dtype: torch.dtype = torch.float32) -> Any:
    """The same model, loaded by Rheoscope."""
    return rs.load(network(name, dtype))


def double(name: str) -> Any:
    return model(name, torch.float64)


def changed(name: str, change: Callable[[Any], None], dtype: torch.dtype = torch.float64) -> Any:
    """The model loaded after `change(network)` on a copy."""
    changed_network = copy.deepcopy(network(name, dtype))
    with torch.no_grad():
        change(changed_network)
    return rs.load(changed_network)


def text(seed: int = 0, n: int = LENGTH) -> Tensor:
    """Random token ids, none of them special."""
    return torch.randint(3, VOCABULARY, (n,), generator=Generator().manual_seed(seed)).to(PLACE)


@once
def traced(name: str, dtype: torch.dtype = torch.float32, seed: int = 0, n: int = LENGTH) -> Any:
    """The trace of a text, computed once per session."""
    return model(name, dtype).trace(text(seed, n), logits=name in WITH_LOGITS)


@torch.no_grad()
def untouched(name: str, ids: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Logits (n, vocabulary) of a copy of the model that Rheoscope never saw."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        fresh = randomised(CASES[name]()).to(PLACE, dtype)
    return fresh(input_ids=ids[None]).logits[0]


@torch.no_grad()
def stream(name: str, ids: Tensor) -> list[Tensor]:
    """Hugging Face's own hidden states: the embedding, then the stream after each layer.

    The last state is omitted if a final norm has been applied to it.
    """
    copied = copy.deepcopy(network(name))  # a model that returns its states keeps hooks of its own
    states = copied.base_model(input_ids=ids[None], output_hidden_states=True).hidden_states
    return list(states if name in POST_NORM - {"opt_projected"} else states[:-1])


def gap(a: Tensor, b: Tensor) -> float:
    """The largest difference."""
    assert a.shape == b.shape, (a.shape, b.shape)
    return float((a.detach().cpu().double() - b.detach().cpu().double()).abs().max())


def distance(a: Tensor, b: Tensor) -> float:
    """|a - b| / |b|."""
    assert a.shape == b.shape, (a.shape, b.shape)
    a, b = a.detach().cpu().double(), b.detach().cpu().double()
    return float((a - b).norm() / b.norm())


# The model's own attention, recorded from outside


class Seen:
    """The inputs of one attention layer: rotated q, k (h, n, ·), v, the mask (n, n) and the scale."""

    def __init__(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float, causal: bool) -> None:
        repeat = q.shape[1] // k.shape[1]
        self.q, self.k, self.v = q[0], k[0].repeat_interleave(repeat, 0), v[0].repeat_interleave(repeat, 0)
        n = q.shape[2]
        all_pairs = torch.ones(n, n, dtype=torch.bool, device=PLACE)
        default_mask = all_pairs.tril() if causal else all_pairs
        self.permitted = default_mask if mask is None else mask[0, 0]
        self.scores = self.q @ self.k.mT * scale
        self.weights = self.scores.masked_fill(~self.permitted, -torch.inf).softmax(-1)


@contextmanager
def spying(network: Any) -> Iterator[list[Seen]]:
    """While a model runs on its own sdpa, record the inputs of each attention layer."""
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    seen: list[Seen] = []

    def spy(module: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scaling: float, **kw: Any) -> Any:
        seen.append(Seen(q, k, v, mask, scaling, kw.get("is_causal") or module.is_causal))
        return ALL_ATTENTION_FUNCTIONS["sdpa"](module, q, k, v, mask, scaling=scaling, **kw)

    hf.AttentionInterface.register("spy", spy)
    hf.AttentionMaskInterface.register("spy", ALL_MASK_ATTENTION_FUNCTIONS["sdpa"])
    original = network.config._attn_implementation
    network.set_attn_implementation("spy")
    try:
        yield seen
    finally:
        network.set_attn_implementation(original)


@once
def seen(name: str, dtype: torch.dtype = torch.float32, seed: int = 0, n: int = LENGTH) -> tuple[Any, tuple[Seen, ...]]:
    """A trace of a text, and the attention that the model computed during it."""
    loaded = model(name, dtype)
    with spying(loaded.network) as layers:
        trace = loaded.trace(text(seed, n), logits=name in WITH_LOGITS)
    return trace, tuple(layers)


# Files and tokenizers


def tokenizer(start: bool = True) -> Any:
    """A tokenizer of the words w3 … w39, with an optional start token."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    vocabulary = {"<pad>": 0, "<s>": 1, "</s>": 2} | {f"w{token_id}": token_id for token_id in range(3, VOCABULARY)}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="w3"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    if start:
        backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return hf.PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>", pad_token="<pad>")


def saved(name: str, directory: Path, **fields: Any) -> Path:
    """The model of a case as a directory, with changed fields of its config. None removes a field."""
    network(name).save_pretrained(directory)
    file = directory / "config.json"
    config = json.loads(file.read_text()) | fields
    file.write_text(json.dumps({key: value for key, value in config.items() if value is not None}))
    return directory


def with_tensors(directory: Path, change: Callable[[dict[str, Tensor]], None]) -> Path:
    """The same directory with changed tensors."""
    from safetensors.torch import load_file, save_file

    file = directory / "model.safetensors"
    tensors = {key: x.clone() for key, x in load_file(file).items()}
    change(tensors)
    save_file(tensors, file, metadata={"format": "pt"})
    return directory


def hooks_left(network: Any) -> list[Any]:
    """The hooks of all modules."""
    return [
        hook
        for module in network.modules()
        for hook in (*module._forward_hooks.values(), *module._forward_pre_hooks.values())
    ]
