"""Further configs of the types with a family file: one group, wide heads, other windows and rotations, missing biases and norms."""

from typing import Any

import transformers as hf

from tests.pretrained.cases import GEMMA, GPT2, GROUPED, OPT, PLAIN, rope

VARIANTS: dict[str, Any] = {
    "gpt2 upcast": lambda: hf.GPT2LMHeadModel(hf.GPT2Config(**GPT2, reorder_and_upcast_attn=True)),
    "gpt2 bare": lambda: hf.GPT2Model(hf.GPT2Config(**GPT2)),
    "llama one group": lambda: hf.LlamaForCausalLM(hf.LlamaConfig(**PLAIN, num_key_value_heads=1)),
    "llama wide heads": lambda: hf.LlamaForCausalLM(hf.LlamaConfig(**GROUPED, head_dim=40)),
    "llama dynamic rope": lambda: hf.LlamaForCausalLM(hf.LlamaConfig(**GROUPED, **rope("dynamic", factor=2.0))),
    "llama bare": lambda: hf.LlamaModel(hf.LlamaConfig(**GROUPED)),
    "llama tied": lambda: hf.LlamaForCausalLM(hf.LlamaConfig(**GROUPED, tie_word_embeddings=True)),
    "mistral without window": lambda: hf.MistralForCausalLM(hf.MistralConfig(**GROUPED, sliding_window=None)),
    "qwen2 from a layer on": lambda: hf.Qwen2ForCausalLM(
        hf.Qwen2Config(**GROUPED, use_sliding_window=True, sliding_window=3, max_window_layers=1)
    ),
    "qwen2 window switched off": lambda: hf.Qwen2ForCausalLM(hf.Qwen2Config(**GROUPED, sliding_window=3)),
    "qwen3 window": lambda: hf.Qwen3ForCausalLM(
        hf.Qwen3Config(**GROUPED, use_sliding_window=True, sliding_window=3, max_window_layers=0)
    ),
    "neox without biases": lambda: hf.GPTNeoXForCausalLM(hf.GPTNeoXConfig(**PLAIN, attention_bias=False)),
    "neox fully rotary": lambda: hf.GPTNeoXForCausalLM(hf.GPTNeoXConfig(**PLAIN, rotary_pct=1.0)),
    "opt without biases": lambda: hf.OPTForCausalLM(hf.OPTConfig(**OPT, enable_bias=False)),
    "opt without gains": lambda: hf.OPTForCausalLM(hf.OPTConfig(**OPT, layer_norm_elementwise_affine=False)),
    "opt without final norm": lambda: hf.OPTForCausalLM(hf.OPTConfig(**OPT, _remove_final_layer_norm=True)),
    "opt projected, norms before": lambda: hf.OPTForCausalLM(hf.OPTConfig(**OPT | {"word_embed_proj_dim": 12})),
    "gemma3 with biases": lambda: hf.Gemma3ForCausalLM(hf.Gemma3TextConfig(**GEMMA, attention_bias=True)),
    "gemma3 that says it caps scores": lambda: hf.Gemma3ForCausalLM(
        hf.Gemma3TextConfig(**GEMMA, attn_logit_softcapping=2.0)
    ),
    "phi3 without window": lambda: hf.Phi3ForCausalLM(hf.Phi3Config(**GROUPED)),
    "phi3 long rope": lambda: hf.Phi3ForCausalLM(
        hf.Phi3Config(
            **GROUPED,
            original_max_position_embeddings=32,
            **rope("longrope", short_factor=[1.1] * 4, long_factor=[2.0] * 4, original_max_position_embeddings=32),
        )
    ),
    "bert as a decoder": lambda: hf.BertLMHeadModel(hf.BertConfig(**PLAIN, is_decoder=True)),
    "bert classifier": lambda: hf.BertForSequenceClassification(hf.BertConfig(**PLAIN)),
}
