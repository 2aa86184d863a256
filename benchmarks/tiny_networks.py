"""A tiny network of any model type of the installed transformers, with random parameters in float64.

A config is made of the defaults of its type, with every size replaced by a small one. `EXTRA_FIELDS` holds what a type needs
beyond that. Windows, chunks and the lengths at which a rotation or a temperature changes are below the 60 tokens of a proof.
"""

from importlib import import_module
from typing import Any

import torch
import transformers
from torch import nn
from torch.utils._pytree import tree_flatten
from transformers import CONFIG_MAPPING, PretrainedConfig
from transformers.models.auto import modeling_auto

from rheoscope.pretrained.network_inputs import (
    FEATURE_INPUTS,
    TOKEN_INPUT,
    feature_arguments,
    is_pair,
    main_input,
    random_features,
)

WIDTH, N_HEADS, HEAD_WIDTH, N_LAYERS, VOCABULARY, CONTEXT = 64, 4, 16, 2, 199, 128
N_EXPERTS, N_ACTIVE_EXPERTS, LATENT_WIDTH, WINDOW = 4, 2, 24, 8
MAX_LAYERS, MAX_PARAMETERS = 6, 3e7

SIZES: dict[str, Any] = {
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "dim", "embed_dim", "emb_dim", "hidden_dim", "d_embed"), WIDTH),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers", "decoder_layers"), N_LAYERS),
    **dict.fromkeys(("num_encoder_layers", "num_decoder_layers", "depth"), N_LAYERS),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads"), N_HEADS),
    **dict.fromkeys(("decoder_attention_heads", "swa_num_attention_heads"), N_HEADS),
    **dict.fromkeys(("num_key_value_heads", "num_global_key_value_heads", "swa_num_key_value_heads", "num_kv_heads"), 2),
    **dict.fromkeys(("head_dim", "d_kv", "global_head_dim", "v_head_dim", "qk_nope_head_dim", "swa_head_dim"), HEAD_WIDTH),
    **dict.fromkeys(("linear_key_head_dim", "linear_value_head_dim", "kv_channels", "swa_v_head_dim", "attention_head_dim"), HEAD_WIDTH),
    **dict.fromkeys(("intermediate_size", "d_ff", "ffn_dim", "encoder_ffn_dim", "decoder_ffn_dim", "n_inner", "ffn_hidden_size"), 96),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size", "moe_shared_expert_intermediate_size"), 32),
    **dict.fromkeys(("expert_ffn_hidden_size", "shared_intermediate_size", "intermediate_size_mlp", "dense_intermediate_size"), 32),
    **dict.fromkeys(("vocab_size", "vocab_size_per_layer_input", "text_vocab_size", "n_words", "padded_vocab_size"), VOCABULARY),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), N_EXPERTS),
    **dict.fromkeys(("num_experts_per_tok", "moe_k", "moe_topk", "top_k_experts", "num_experts_per_token"), N_ACTIVE_EXPERTS),
    **dict.fromkeys(("q_lora_rank", "kv_lora_rank"), LATENT_WIDTH),
    **dict.fromkeys(("n_group", "topk_group", "n_shared_experts", "first_k_dense_replace", "num_shared_experts"), 1),
    **dict.fromkeys(("sliding_window", "attention_chunk_size", "window_size", "local_attention"), WINDOW),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "max_seq_len", "n_ctx", "max_sequence_length"), CONTEXT),
    "qk_rope_head_dim": 8, "qk_head_dim": HEAD_WIDTH + 8, "hidden_size_per_layer_input": 16, "embedding_size": 32,
    "num_nextn_predict_layers": 0,
    "linear_num_value_heads": 4, "linear_num_key_heads": 2, "image_size": 32, "patch_size": 8, "floor_scale": 16,
    "mamba_n_heads": 4, "mamba_d_head": 32, "mamba_d_state": 8, "mamba_num_heads": 4, "mamba_head_dim": 32, "mamba_n_groups": 1,
    "mamba_d_ssm": 128, "ssm_state_size": 8, "state_size": 8, "n_groups": 1, "mamba_dt_rank": 4, "mamba_expand": 2,
    "kv_proj_dim": 32, "lru_width": WIDTH, "rotary_dim": 8,
}  # fmt: skip
"""Small numbers for the fields of configs, by name."""

TUNED_YARN = {
    "rope_type": "yarn", "rope_theta": 100.0, "factor": 16.0, "original_max_position_embeddings": 16, "max_position_embeddings": CONTEXT,
    "llama_4_scaling_beta": 0.1, "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0,
}  # fmt: skip
"""A rotation whose queries grow with their position beyond 16 tokens."""
IMAGE_POSITIONS = {"rope_parameters": {"rope_type": "default", "rope_theta": 100.0, "mrope_section": [2, 3, 3]}}
HALF_IMAGE_POSITIONS = {
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 100.0,
        "mrope_section": [1, 1, 2],
        "partial_rotary_factor": 0.5,
    }
}
"""Rotations by time, row and column, whose sections fill a head or half of it."""
WINDOWS_OF_PATCHES = {"window_size": 48, "fullatt_block_indexes": [1]}
"""Windows of three merged patches, the last of which are smaller, then a layer without windows."""
SLIDING_THEN_FULL = ["sliding_attention", "sliding_attention", "full_attention"]
SLIDING_LAYERS = {"num_hidden_layers": 3, "layer_types": SLIDING_THEN_FULL,
                  "rope_parameters": {x: {"rope_type": "default", "rope_theta": 100.0} for x in SLIDING_THEN_FULL}}  # fmt: skip
DIFFUSION_GEMMA = {"num_experts": N_EXPERTS, "top_k_experts": N_ACTIVE_EXPERTS, "moe_intermediate_size": 32}
DEEPSEEK_OCR = {
    "num_experts_per_tok": N_ACTIVE_EXPERTS,
    "num_key_value_heads": N_HEADS,
    "mlp_layer_types": ["dense", "sparse"],
}
HUNYUAN_VL = {
    "head_dim": HEAD_WIDTH,
    "rope_parameters": {"rope_type": "default", "rope_theta": 100.0, "mrope_section": [2, 2, 2, 2]},
}
ERNIE_VL = {
    "moe_intermediate_size": [32, 16],
    "rope_parameters": {"rope_type": "default", "rope_theta": 100.0, "mrope_section": [3, 3, 2]},
}
EXTRA_FIELDS: dict[str, dict[str, Any]] = {
    "bailing_hybrid": {"num_experts": 16, "n_group": 4, "topk_group": 2},
    "bamba": {"attn_layer_indices": [1], "num_hidden_layers": 3},
    "blt": {"encoder_hash_byte_group_vocab": VOCABULARY},
    "codegen": {"rotary_dim": 8},
    "cohere_compass_text": SLIDING_LAYERS,
    "dbrx": {"attn_config": {"kv_n_heads": 2, "rope_theta": 100.0, "clip_qkv": 100.0}, "max_seq_len": CONTEXT},
    "deepseek_v2": {"num_experts_per_tok": N_ACTIVE_EXPERTS, "n_routed_experts": N_EXPERTS},
    "dots1": {"num_experts_per_tok": N_ACTIVE_EXPERTS, "n_routed_experts": N_EXPERTS, "n_shared_experts": 1},
    "esm": {"pad_token_id": 0, "vocab_size": VOCABULARY, "mask_token_id": 3, "position_embedding_type": "rotary", "token_dropout": False},
    "esmc": {"num_key_value_heads": N_HEADS},
    "gemma3n_text": {"num_hidden_layers": 4, "num_kv_shared_layers": 2, "activation_sparsity_pattern": [0.0] * 4, "laurel_rank": 8,
                     "layer_types": ["sliding_attention", "full_attention"] * 2, "intermediate_size": [96] * 4},
    "gemma4_text": {"num_hidden_layers": 4, "layer_types": ["sliding_attention", "full_attention"] * 2, "num_kv_shared_layers": 2},
    "granitemoehybrid": {"num_hidden_layers": 3, "layer_types": ["mamba", "attention", "attention"]},
    "hunyuan_v1_dense": {"head_dim": HEAD_WIDTH},
    "hunyuan_v1_moe": {"head_dim": HEAD_WIDTH},
    "jamba": {"num_hidden_layers": 3, "attn_layer_period": 2, "attn_layer_offset": 1},
    "lfm2_moe": {"num_hidden_layers": 3, "layer_types": ["conv", "full_attention", "full_attention"], "num_dense_layers": 1},
    "llama4": {"floor_scale": 24},
    "llama4_text": {"floor_scale": 24},
    "luke": {"entity_vocab_size": 16, "entity_emb_size": 16},
    "mamba2": {"num_heads": 4, "head_dim": 32},
    "minimax": {"num_hidden_layers": 3, "layer_types": ["linear_attention", "full_attention", "full_attention"]},
    "ministral": {"head_dim": HEAD_WIDTH},
    "ministral3": {"rope_parameters": TUNED_YARN},
    "mistral4": {"rope_parameters": TUNED_YARN},
    "musicgen": {"num_codebooks": 1},
    "musicgen_melody": {"num_codebooks": 1},
    "nemotron": {"num_key_value_heads": 2},
    "phi3": {"original_max_position_embeddings": 32, "sliding_window": 50,
             "rope_parameters": {"rope_type": "longrope", "rope_theta": 100.0,
                                 "short_factor": [1.0, 1.1] * 4, "long_factor": [2.0, 4.0] * 4,
                                 "original_max_position_embeddings": 32}},
    "recurrent_gemma": {"num_hidden_layers": 3, "attention_window_size": WINDOW},
    "reformer": {"is_decoder": True, "axial_pos_shape": [8, 16], "axial_pos_embds_dim": [32, 32]},
    "roc_bert": {"shape_embed_dim": 16, "pronunciation_embed_dim": 16, "pronunciation_vocab_size": 50, "shape_vocab_size": 50},
    "squeezebert": {"embedding_size": WIDTH},
    "xmod": {"default_language": "en_XX"},
    "zamba": {"num_hidden_layers": 5, "layers_block_type": [*["linear_attention", "hybrid"] * 2, "linear_attention"]},
    "step3p5": {"sliding_window": WINDOW},
    "zaya": {"num_experts_per_tok": 1},
    "cohere_compass": {"text_config": SLIDING_LAYERS},
    "deepseek_ocr2_text": DEEPSEEK_OCR,
    "deepseek_ocr2": {"text_config": DEEPSEEK_OCR},
    "diffusion_gemma_text": DIFFUSION_GEMMA,
    "diffusion_gemma": {"text_config": DIFFUSION_GEMMA},
    "ernie4_5_vl_moe_text": ERNIE_VL,
    "ernie4_5_vl_moe": {"text_config": ERNIE_VL},
    "glm4v_moe": {"text_config": HALF_IMAGE_POSITIONS},
    "glm4v_moe_text": HALF_IMAGE_POSITIONS,
    "glm5_next_text": {"qk_rope_head_dim": 0},
    "glm5_next": {"text_config": {"qk_rope_head_dim": 0}},
    "hunyuan_vl_text": HUNYUAN_VL,
    "hunyuan_vl": {"text_config": HUNYUAN_VL},
    "cosmos3_edge_text": IMAGE_POSITIONS,
    "cosmos3_edge": {"text_config": IMAGE_POSITIONS},
    "unlimited_ocr_text": {"num_key_value_heads": N_HEADS},
    "unlimited_ocr": {"text_config": {"num_key_value_heads": N_HEADS}},
    "step3p7": {"text_config": {"sliding_window": WINDOW}},
    "colqwen2": {"vlm_config": {"text_config": IMAGE_POSITIONS}},
    "qwen2_5_omni_talker": {**IMAGE_POSITIONS, "embedding_size": WIDTH},
    "lilt": {"hidden_size": 96},
    "layoutlmv3": {"coordinate_size": 8, "shape_size": 16},
    "clvp_encoder": {"num_attention_heads": 2, "projection_dim": WIDTH},
    "chameleon": {"vocabulary_map": {"<image>": 100}},
    "t5gemma2_text": {"dropout_rate": 0.0},
    "shieldgemma2": {"yes_token_index": 5, "no_token_index": 6},
    "molmo2": {"adapter_config": {"vision_feature_layer": [1, 0]}},
    "pixtral": {"image_size": 40},
    "ovis2_vision": {"image_size": 40},
    "step3p5_vision": {"image_size": 40},
    "internvl_vision": {"image_size": [32, 32], "patch_size": [8, 8]},
    **dict.fromkeys(("qwen2_vl_text", "qwen2_5_vl_text", "qwen2_5_omni_text", "paddleocr_vl_text"), IMAGE_POSITIONS),
    **{x: {"text_config": IMAGE_POSITIONS} for x in ("qwen2_vl", "qwen2_5_vl", "qwen2_5_omni_thinker", "paddleocr_vl")},
    **dict.fromkeys(("glm4v_text", "glm_ocr_text", "glm_image_text"), HALF_IMAGE_POSITIONS),
    **{x: {"text_config": HALF_IMAGE_POSITIONS} for x in ("glm4v", "glm46v", "glm_ocr", "glmga", "glm_image")},
    **dict.fromkeys(("exaone4_5_vision", "qwen2_5_omni_vision_encoder", "qwen2_5_vl_vision"), WINDOWS_OF_PATCHES),
    "glm5_next_vision": {"projection_intermediate_size": 96, "out_hidden_size": WIDTH},
    "yolos": {"image_size": [32, 32]},
    "aimv2_vision_model": {"image_size": 40},
}  # fmt: skip
"""Model type → fields that its small config needs."""


PAIR = " (encoder-decoder)"
"""The mark of the whole network of a type whose decoder is a language model too."""


class NotBuilt(Exception):
    """A model type without a network of this kind, with the reason."""


def scope_problem(model_type: str) -> str | None:
    """Why a model type is not one that this benchmark opens; None if it is."""
    network_class = class_of(model_type)
    if network_class is None:
        return "transformers has no network of this type alone"
    if hasattr(network_class, "get_text_features"):
        return "several towers, each a type of its own"
    name = getattr(network_class, "main_input_name", TOKEN_INPUT)
    if name not in (TOKEN_INPUT, *FEATURE_INPUTS):
        return f"its input is {name}"
    return None


def language_model_types() -> set[str]:
    names = modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES
    return set(names[0]) | set(names[1])


def model_types() -> list[str]:
    """Every model type of the installed transformers."""
    pairs = {f"{x}{PAIR}" for x in pair_classes() if x in language_model_types()}
    return sorted(set(CONFIG_MAPPING.keys()) | language_model_types() | pairs)


def pair_classes() -> dict[str, Any]:
    """The networks that read a text or a sound and write a text, most of them encoder-decoders."""
    texts, sounds = (
        modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
        modeling_auto.MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES,
    )
    return {**texts, **sounds}


def class_of(model_type: str) -> Any:
    """The network class of a model type: with an unembedding if there is one."""
    is_both = model_type.endswith(PAIR)
    for mapping in (
        {} if is_both else modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        {} if is_both else modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES,
        pair_classes(),
        modeling_auto.MODEL_MAPPING_NAMES,
    ):
        name = mapping.get(model_type.removesuffix(PAIR))
        if name is not None:
            return getattr(transformers, name if isinstance(name, str) else name[0], None)
    return _class_of_config(CONFIG_MAPPING[model_type])


def _class_of_config(config_class: type[PretrainedConfig]) -> Any:
    """The first network class whose config is of this class."""
    try:
        module = import_module(config_class.__module__.replace(".configuration_", ".modeling_"))
    except ImportError:
        return None
    own = [
        x
        for x in vars(module).values()
        if getattr(x, "config_class", None) is config_class and issubclass(x, nn.Module)
    ]
    public = [x for x in own if not x.__name__.endswith("PreTrainedModel")]
    return min(public, key=lambda x: not x.__name__.endswith("Model"), default=None)


def build_network(model_type: str) -> Any:
    """A tiny network with random parameters. Raises `NotBuilt` if there is none."""
    try:
        network_class = class_of(model_type)
        config = small_config(
            network_class.config_class or CONFIG_MAPPING[model_type.removesuffix(PAIR)],
            EXTRA_FIELDS.get(model_type.removesuffix(PAIR), {}),
        )
        with torch.device("meta"):
            n_parameters = sum(x.numel() for x in network_class(config).parameters())
        if n_parameters > MAX_PARAMETERS:
            raise NotBuilt(f"{n_parameters / 1e6:.0f} million parameters")
        config._attn_implementation = "eager"
        torch.manual_seed(0)
        network = network_class(config)
    except NotBuilt:
        raise
    except Exception as error:  # a config may raise anything
        raise NotBuilt(f"{type(error).__name__}: {' '.join(str(error).split())[:160]}") from error
    for x in network.modules():  # experts one by one, because grouped products have no float64
        if hasattr(getattr(x, "config", None), "_experts_implementation"):
            x.config._experts_implementation = "eager"
    network = randomise(network).double().eval()
    _check_input(network)
    return network


@torch.no_grad()
def _check_input(network: Any) -> None:
    """Raise if a network needs more than token ids, pixels, spectra or samples."""
    name = main_input(network)
    try:
        inputs = {name: torch.arange(20, 40)[None]}
        inputs = inputs if name == TOKEN_INPUT else feature_arguments(network, random_features(network))
        inputs |= {"decoder_input_ids": torch.arange(30, 37)[None]} if is_pair(network) else {}
        outputs = [network(**inputs) for _ in range(1 if name == TOKEN_INPUT else 2)]
    except Exception as error:
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:120]}"
        needed = "token ids" if name == TOKEN_INPUT else name
        raise NotBuilt(f"it does not run on {needed} alone ({reason})") from error
    if name != TOKEN_INPUT and not torch.equal(*(tree_flatten(x)[0][0] for x in outputs)):
        raise NotBuilt("two runs on the same input differ")


@torch.no_grad()
def randomise(network: nn.Module) -> nn.Module:
    """Random matrices that keep the length of their input, and random gains and biases, so that nothing keeps its initial value."""
    generator = torch.Generator().manual_seed(1)
    for x in (x for x in network.parameters() if x.requires_grad):  # a table of sines is no free parameter
        noise = torch.randn(x.shape, generator=generator).to(x)
        if x.ndim <= 1:
            x.add_(0.3 * noise)
        else:
            x.copy_(noise * max(x.shape[-1], 1) ** -0.5)
    return network


def small_config(config_class: type[PretrainedConfig], extra: dict[str, Any]) -> PretrainedConfig:
    """The default config of a class with small sizes; parts of it likewise."""
    return config_class(**small_fields(config_class(), extra))


def small_fields(default: PretrainedConfig, extra: dict[str, Any]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for name, value in vars(default).items():
        if isinstance(value, PretrainedConfig):
            part = small_config(type(value), extra.get(name, {}))
            fields[name] = part.to_dict() | {"model_type": part.model_type}
        elif name in SIZES and isinstance(value, int) and not isinstance(value, bool):
            fields[name] = SIZES[name]
        elif name.endswith("token_id") and isinstance(value, int):
            fields[name] = {"pad_token_id": 0, "bos_token_id": 1}.get(name, 2)
    if "kv_lora_rank" in fields:  # latent attention: a key of every head, and rotary coordinates of their own
        fields |= {"num_key_value_heads": N_HEADS} if "num_key_value_heads" in fields else {}
        fields |= {"head_dim": SIZES["qk_rope_head_dim"]} if "head_dim" in fields else {}
    fields |= _layer_lists(default)
    return fields | {
        name: value for name, value in extra.items() if not isinstance(getattr(default, name, None), PretrainedConfig)
    }


def _layer_lists(default: PretrainedConfig) -> dict[str, Any]:
    """Lists with an entry per layer, cut to the first layer of every kind, and the number of layers that remain."""
    count_name = next((name for name in ("num_hidden_layers", "num_layers", "n_layer") if name in vars(default)), None)
    n_layers = None if count_name is None else getattr(default, count_name)
    lists = {
        name: x
        for name, x in vars(default).items()
        if isinstance(x, list) and len(x) == n_layers and n_layers > N_LAYERS
    }
    if not lists:
        return {}
    firsts = {x.index(entry) for x in lists.values() for entry in x}
    indices = sorted(firsts | set(range(N_LAYERS)))[:MAX_LAYERS]
    return {str(count_name): len(indices)} | {name: [x[i] for i in indices] for name, x in lists.items()}
