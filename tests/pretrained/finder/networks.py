"""Tiny networks of types that no family file describes, one for each way in which attention can be built."""

from collections.abc import Callable
from typing import Any

import torch
import transformers as hf

from tests.pretrained.cases import GPT2, GROUPED, PLAIN, randomised

EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 16}
BLOOM = {"hidden_size": 32, "n_layer": 2, "n_head": 4, "vocab_size": 40}
DEEPSEEK = {
    **PLAIN,
    **EXPERTS,
    "num_key_value_heads": 4,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "q_lora_rank": 12,
    "kv_lora_rank": 12,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 8,
    "head_dim": 4,
}
HYBRID = {
    **GROUPED,
    **EXPERTS,
    "num_hidden_layers": 3,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "num_experts": 4,
    "shared_expert_intermediate_size": 16,
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "head_dim": 16,
}

GEMMA3N = {
    **GROUPED,
    "head_dim": 8,
    "num_hidden_layers": 4,
    "num_kv_shared_layers": 2,
    "activation_sparsity_pattern": [0.0] * 4,
    "laurel_rank": 4,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "sliding_window": 5,
    "intermediate_size": [24] * 4,
    "hidden_size_per_layer_input": 4,
    "vocab_size_per_layer_input": 40,
}
"""Four streams that every layer mixes. The last two layers read the keys and values of the first two."""
GEMMA4 = {
    **GROUPED,
    "num_hidden_layers": 4,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "num_kv_shared_layers": 2,
    "head_dim": 8,
    "global_head_dim": 8,
    "sliding_window": 5,
    "hidden_size_per_layer_input": 4,
    "vocab_size_per_layer_input": 40,
}
"""The last two layers read the keys and values of the first two."""
JETMOE = {**PLAIN, "num_key_value_heads": 2, "kv_channels": 8, "num_local_experts": 2, "num_experts_per_tok": 2}
LLAMA4 = {
    **GROUPED,
    "intermediate_size_mlp": 24,
    "num_local_experts": 2,
    "head_dim": 8,
    "attention_chunk_size": 5,
    "floor_scale": 33,
    "layer_types": ["chunked_attention", "full_attention"],
    "no_rope_layers": [1, 0],
}
"""Attention in chunks, then attention whose queries grow with their position beyond 32 tokens."""
MAMBA = {"mamba_d_ssm": 32, "mamba_n_heads": 2, "mamba_d_head": 16, "mamba_n_groups": 1, "mamba_d_state": 8}
TUNED_YARN = {
    "rope_type": "yarn",
    "rope_theta": 100.0,
    "factor": 4.0,
    "original_max_position_embeddings": 32,
    "max_position_embeddings": 64,
    "llama_4_scaling_beta": 0.1,
}
"""A rotation whose queries grow with their position beyond 32 tokens."""

MINIMAX = {
    **GROUPED,
    "num_hidden_layers": 4,
    "layer_types": ["linear_attention", "full_attention", "full_attention", "linear_attention"],
    "head_dim": 8,
    "num_local_experts": 2,
    "num_experts_per_tok": 1,
    "full_attn_alpha_factor": 3.5,
    "full_attn_beta_factor": 0.5,
    "mlp_alpha_factor": 2.0,
    "mlp_beta_factor": 0.25,
}
"""Blocks that begin with a norm whose result is the stream, times a factor."""

NETWORKS: dict[str, Callable[[], Any]] = {
    "albert": lambda: hf.AlbertForMaskedLM(hf.AlbertConfig(**PLAIN, embedding_size=12)),
    "bitnet": lambda: hf.BitNetForCausalLM(hf.BitNetConfig(**GROUPED)),
    "bitnet_layer_norm": lambda: bitnet_with_layer_norms(),
    "bloom": lambda: hf.BloomForCausalLM(hf.BloomConfig(**BLOOM)),
    "cohere": lambda: hf.CohereForCausalLM(hf.CohereConfig(**GROUPED, use_qk_norm=True, logit_scale=0.5)),
    "cohere2": lambda: hf.Cohere2ForCausalLM(hf.Cohere2Config(**GROUPED, sliding_window=5, logit_scale=0.5)),
    "deepseek_v32": lambda: hf.DeepseekV32ForCausalLM(
        hf.DeepseekV32Config(**DEEPSEEK | {"num_local_experts": 4}, index_topk=32, index_n_heads=2, index_head_dim=8)
    ),
    "deepseek_v3": lambda: hf.DeepseekV3ForCausalLM(hf.DeepseekV3Config(**DEEPSEEK)),
    "diffllama": lambda: hf.DiffLlamaForCausalLM(hf.DiffLlamaConfig(**GROUPED)),
    "distilbert": lambda: hf.DistilBertForMaskedLM(
        hf.DistilBertConfig(dim=32, hidden_dim=24, n_layers=2, n_heads=4, vocab_size=40)
    ),
    "electra": lambda: hf.ElectraForMaskedLM(hf.ElectraConfig(**PLAIN, embedding_size=12)),
    "esmc": lambda: hf.EsmcForMaskedLM(hf.EsmcConfig(**PLAIN | {"num_key_value_heads": 4})),
    "falcon_h1": lambda: hf.FalconH1ForCausalLM(hf.FalconH1Config(**GROUPED | {"num_hidden_layers": 1}, **MAMBA)),
    "falcon": lambda: hf.FalconForCausalLM(hf.FalconConfig(**PLAIN, new_decoder_architecture=False)),
    "gemma2": lambda: hf.Gemma2ForCausalLM(
        hf.Gemma2Config(**GROUPED, head_dim=16, sliding_window=4, query_pre_attn_scalar=20, attn_logit_softcapping=5.0)
    ),
    "gemma3n": lambda: hf.Gemma3nForCausalLM(hf.Gemma3nTextConfig(**GEMMA3N)),
    "gemma4": lambda: hf.Gemma4ForCausalLM(hf.Gemma4TextConfig(**GEMMA4)),
    "gptj": lambda: hf.GPTJForCausalLM(hf.GPTJConfig(**GPT2 | {"n_positions": 40}, rotary_dim=4)),
    "gpt_oss": lambda: hf.GptOssForCausalLM(
        hf.GptOssConfig(**GROUPED, head_dim=16, sliding_window=4, num_local_experts=4, num_experts_per_tok=2)
    ),
    "gpt_neo": lambda: hf.GPTNeoForCausalLM(
        hf.GPTNeoConfig(
            hidden_size=32,
            num_layers=2,
            num_heads=4,
            attention_types=[[["local", "global"], 1]],
            window_size=12,
            vocab_size=40,
        )
    ),
    "granite": lambda: hf.GraniteForCausalLM(
        hf.GraniteConfig(
            **GROUPED, residual_multiplier=0.3, embedding_multiplier=3.0, logits_scaling=2.0, attention_multiplier=0.2
        )
    ),
    "ibert": lambda: hf.IBertForMaskedLM(hf.IBertConfig(**PLAIN | {"pad_token_id": 1, "bos_token_id": 0})),
    "llama4": lambda: hf.Llama4ForCausalLM(hf.Llama4TextConfig(**LLAMA4)),
    "minimax": lambda: hf.MiniMaxForCausalLM(hf.MiniMaxConfig(**MINIMAX)),
    "mpnet": lambda: hf.MPNetForMaskedLM(hf.MPNetConfig(**PLAIN | {"pad_token_id": 1, "bos_token_id": 0})),
    "granite_swa": lambda: hf.GraniteSWAForCausalLM(
        hf.GraniteSWAConfig(**GROUPED, sliding_window=4, layer_types=["sliding_attention", "full_attention"])
    ),
    "ministral3": lambda: hf.Ministral3ForCausalLM(
        hf.Ministral3Config(**GROUPED, head_dim=8, sliding_window=None, rope_parameters=TUNED_YARN)
    ),
    "nanochat": lambda: hf.NanoChatForCausalLM(hf.NanoChatConfig(**GROUPED)),
    "olmo2": lambda: hf.Olmo2ForCausalLM(hf.Olmo2Config(**GROUPED)),
    "olmo2_from_position_1": lambda: Olmo2FromPosition1(hf.Olmo2Config(**GROUPED)),
    "persimmon": lambda: hf.PersimmonForCausalLM(hf.PersimmonConfig(**PLAIN)),
    "phi": lambda: hf.PhiForCausalLM(hf.PhiConfig(**PLAIN, partial_rotary_factor=0.5, qk_layernorm=True)),
    "qwen3_next": lambda: hf.Qwen3NextForCausalLM(hf.Qwen3NextConfig(**HYBRID)),
    "roc_bert": lambda: hf.RoCBertForMaskedLM(
        hf.RoCBertConfig(
            **PLAIN,
            shape_embed_dim=8,
            pronunciation_embed_dim=8,
            pronunciation_vocab_size=9,
            shape_vocab_size=9,
        )
    ),
    "roformer": lambda: hf.RoFormerForMaskedLM(hf.RoFormerConfig(**PLAIN)),
    "visual_bert": lambda: hf.VisualBertModel(hf.VisualBertConfig(**PLAIN, visual_embedding_dim=8)),
    "xlm_roberta": lambda: hf.XLMRobertaForMaskedLM(
        hf.XLMRobertaConfig(**PLAIN | {"pad_token_id": 1, "bos_token_id": 0})
    ),
}


class Olmo2FromPosition1(hf.Olmo2ForCausalLM):
    """Positions are counted from 1, as in PaliGemma."""

    def forward(self, input_ids: torch.Tensor, **inputs: Any) -> Any:
        positions = torch.arange(1, input_ids.shape[1] + 1)[None]
        return super().forward(input_ids=input_ids, **inputs | {"position_ids": positions})


def bitnet_with_layer_norms() -> Any:
    """BitNet with the norms of Kosmos-2, which has no attention in float64."""
    network = hf.BitNetForCausalLM(hf.BitNetConfig(**GROUPED))
    for layer in network.model.layers:
        layer.self_attn.attn_sub_norm = torch.nn.LayerNorm(32, eps=1e-3)
    return network


def build(name: str) -> Any:
    """A network with noise on every parameter, in float64."""
    network = randomised(NETWORKS[name]()).double()
    if hasattr(network, "set_experts_implementation"):
        network.set_experts_implementation("eager")  # the fused products of experts need float32
    return network
