"""Check that a refactoring changed no number: run every analysis in two versions of the package and compare every field.

    python benchmarks/same_numbers.py OLD [--quick] [--analyses a,b] [--models default,llama] [--jobs 2]
    python benchmarks/same_numbers.py --smallest     a tiny model in this process, run twice and compared with itself

OLD is a commit or the directory of a checkout. The new version is this checkout, or the directory given by --new. Names that
changed are listed in the tables at the top of this file. The exit status is 1 if there is a difference without an explanation.

Numbers must agree to a relative 1e-9 if the model and the array are float64, and to 1e-5 otherwise. A difference is divided by
the larger of the two numbers, or by a fraction of the largest number of the array (1e-6 or 1e-2) if that is larger. Whole
numbers, truth values, strings, axes and dtypes must be equal. Attributes that hold text are not compared.
"""

import argparse
import hashlib
import inspect
import io
import itertools
import json
import os
import pickle
import subprocess
import sys
import tarfile
import tempfile
import time
import warnings
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
from timing import make_parser

# Tables of renamed names. All other tables of this file use the old names.

RENAMED_ANALYSES: dict[str, str] = {}
"""Old name → new name of an analysis."""
RENAMED_FIELDS: dict[tuple[str, str], str] = {
    ("*", "word"): "token_text",
    ("senses", "word"): "word",
    ("fixed_point", "time"): "application",
    ("fixed_point", "settling"): "repeated_rotation_angle",
    ("boundary", "time"): "application",
    ("boundary", "settling"): "repeated_rotation_angle",
    ("fixed_point", "settling_null"): "repeated_rotation_angle_null",
    ("fixed_point", "settling_null_sd"): "repeated_rotation_angle_null_sd",
    ("fixed_point", "settling_untrained"): "repeated_rotation_angle_untrained",
    ("fixed_point", "turn"): "rotation_angle",
    ("fixed_point", "turn_null"): "rotation_angle_null",
    ("fixed_point", "turn_null_sd"): "rotation_angle_null_sd",
    ("fixed_point", "turn_untrained"): "rotation_angle_untrained",
    ("fixed_point", "turn_null_untrained"): "rotation_angle_null_untrained",
    ("fixed_point", "turn_draws"): "rotation_angle_null_draws",
    ("fixed_point", "turn_p"): "rotation_angle_p_value",
    ("boundary", "change"): "input_angle",
    ("boundary", "settled"): "final_angle",
    ("boundary", "change_token"): "input_angle_token",
    ("boundary", "settled_token"): "final_angle_token",
    ("boundary", "change_null"): "input_angle_null",
    ("boundary", "settled_null"): "final_angle_null",
    ("boundary", "after"): "after_boundary",
    ("decay", "remaining"): "deviation_ratio",
    ("decay", "healed_less"): "excess_deviation_ratio",
    ("faithfulness", "curve"): "mean_loss",
    ("faithfulness", "lost"): "excess_loss",
    ("faithfulness", "lost_more"): "excess_loss_difference",
    ("decay", "remaining_low"): "deviation_ratio_low",
    ("decay", "healed_less_low"): "excess_deviation_ratio_low",
    ("faithfulness", "curve_low"): "mean_loss_low",
    ("faithfulness", "lost_low"): "excess_loss_low",
    ("faithfulness", "lost_more_low"): "excess_loss_difference_low",
    ("decay", "remaining_high"): "deviation_ratio_high",
    ("decay", "healed_less_high"): "excess_deviation_ratio_high",
    ("faithfulness", "curve_high"): "mean_loss_high",
    ("faithfulness", "lost_high"): "excess_loss_high",
    ("faithfulness", "lost_more_high"): "excess_loss_difference_high",
    ("faithfulness", "share"): "fraction",
    ("faithfulness", "ranked"): "score",
    ("faithfulness", "other"): "other_score",
    ("faithfulness", "rival"): "other_ranking",
    ("head_statistics", "first"): "first_token_weight",
    ("head_statistics", "top"): "max_weight",
    ("head_statistics", "distance"): "attention_distance",
    ("head_statistics", "received"): "max_received_share",
    ("distorted_pairs", "first"): "earlier_token",
    ("distorted_pairs", "second"): "later_token",
    ("distorted_pairs", "before"): "distance_rank_before",
    ("distorted_pairs", "after"): "distance_rank_after",
    ("distorted_pairs", "first_token"): "earlier_token_text",
    ("distorted_pairs", "second_token"): "later_token_text",
    ("attention_patching", "predicted"): "predicted_loss",
    ("surgery", "each_cost"): "head_cost",
    ("surgery", "each_cost_low"): "head_cost_low",
    ("surgery", "each_cost_high"): "head_cost_high",
    ("surgery", "each_excess"): "head_excess",
    ("surgery", "each_excess_low"): "head_excess_low",
    ("surgery", "each_excess_high"): "head_excess_high",
    ("surgery", "total"): "total_cost",
    ("surgery", "total_low"): "total_cost_low",
    ("surgery", "total_high"): "total_cost_high",
    ("surgery", "each_cost_of_text"): "head_cost_by_text",
    ("head_types", "itself"): "self_weight",
    ("head_types", "itself_null"): "self_weight_null",
    ("operators", "symmetry_at"): "symmetry_at_offset",
    ("reversed_attention", "pull"): "gradient_sum",
    ("reversed_attention", "received"): "gradient_abs_sum",
    ("relation_swap", "kl_everywhere"): "kl_all_layers",
    ("relation_swap", "kl_everywhere_null"): "kl_all_layers_null",
    ("relation_swap", "kl_other"): "kl_other_text",
    ("stack", "span"): "joint_rank_share",
    ("stack", "order"): "head_order",
    ("scores", "spread"): "row_sd",
    ("heat", "memory"): "row_distance",
    ("heat", "memory_null"): "row_distance_null",
    ("heat", "memory_null_sd"): "row_distance_null_sd",
    ("heat", "gap"): "spectral_gap",
    ("frames", "place"): "plane_position",
    ("frames", "explained"): "explained_variance",
    ("trajectory", "place"): "plane_position",
    ("trajectory", "place_share"): "plane_variance_share",
    ("trajectory", "straightness_flipped"): "straightness_null_draws",
    ("readout", "largest_elsewhere"): "predicted_log_probability",
    ("readout", "likeliest"): "predicted_token",
    ("readout", "likeliest_probability"): "predicted_probability",
    ("readout", "elsewhere"): "earlier_token",
    ("massive_tokens", "length"): "relative_norm",
    ("massive_tokens", "largest"): "max_relative_norm",
    ("massive_tokens", "born"): "first_step",
    ("massive_tokens", "spread"): "log_norm_sd",
    ("density_clusters", "noise"): "unclustered_share",
    ("purity", "named"): "labelled_types",
    ("purity", "pairs"): "same_label_pairs",
    ("senses", "nearest"): "nearest_same_sense",
    ("senses", "nearest_low"): "nearest_same_sense_low",
    ("senses", "nearest_high"): "nearest_same_sense_high",
    ("senses", "nearest_null"): "nearest_same_sense_null",
    ("senses", "nearest_untrained"): "nearest_same_sense_untrained",
    ("relatedness", "nearer"): "same_group_nearer",
    ("relatedness", "nearer_low"): "same_group_nearer_low",
    ("relatedness", "nearer_high"): "same_group_nearer_high",
    ("relatedness", "nearer_null"): "same_group_nearer_null",
    ("relatedness", "nearer_untrained"): "same_group_nearer_untrained",
    ("relatedness", "group_nearer"): "same_group_nearer_by_group",
    ("charts", "bend"): "tangent_angle",
    ("charts", "distinct"): "distinct_points",
}
"""(old analysis, old name) → new name of a field, coordinate or axis. The analysis "*" stands for every analysis."""
RENAMED_SUFFIXES: dict[str, str] = {"_drawn": "_null_draws"}
"""Old ending → new ending of such a name, in every analysis: {"_drawn": "_null_draws"}. RENAMED_FIELDS takes precedence."""
RENAMED_LABELS: dict[tuple[str, str], dict[str, str]] = {
    ("clusters", "type_flow"): {"gathers": "merging", "separates": "splitting", "keeps": "unchanged"},
}
"""(old analysis or "*", old field or coordinate) → {old string: new string}."""
RENAMED_SETTINGS: dict[tuple[str, str], str] = {
    ("surgery", "against"): "comparisons",
    ("agreement", "least"): "min_keys",
    ("agreement", "queries"): "max_queries",
    ("distortion", "nearest"): "n_neighbours",
    ("distortion", "rows"): "max_tokens",
    ("fixed_point", "times"): "applications",
    ("boundary", "times"): "applications",
    ("faithfulness", "shares"): "fractions",
    ("surgery", "each"): "per_head",
    ("head_types", "tokens"): "probe_length",
    ("head_types", "reach"): "local_window",
    ("prefix_stability", "least"): "min_keys",
    ("geometry_kept", "nearest"): "n_neighbours",
    ("geometry_kept", "pairs"): "max_pairs",
    ("charts", "nearest"): "n_neighbours",
    ("charts", "off"): "unexplained_variance",
    ("density_clusters", "least"): "min_cluster_size",
    ("senses", "words"): "word_list",
    ("relatedness", "words"): "word_list",
    ("relatedness", "carriers"): "carrier_sentences",
    ("massive_tokens", "times"): "norm_ratio",
    ("readout", "before"): "tokens_before",
    ("transport", "between"): "step_draws",
    ("frames", "count"): "n_frames",
    ("distorted_pairs", "image"): "projection",
    ("stack", "image"): "projection",
}
"""(old analysis or "*", old setting) → new name of the setting, and of the attribute that reports it."""
RENAMED_ATTRIBUTES: dict[tuple[str, str], str] = {
    ("relatedness", "given"): "confounders",
    ("transport", "next"): "next_token_source",
    ("energy", "found"): "gradient_like_heads",
    ("energy", "found_expected_false"): "expected_false_heads",
    ("energy", "found_expected_under_null"): "expected_under_null",
    ("energy", "tested"): "tested_heads",
}
"""(old analysis or "*", old attribute) → new name of an attribute that is no setting."""
RENAMED_SETTING_VALUES: dict[tuple[str, str], dict[Any, Any]] = {}
"""(old analysis or "*", old setting) → {old value: new value}: {("*", "grain"): {"half": "sublayer"}}."""
EXPECTED_DIFFERENCES: dict[tuple[str, str], str] = {}
"""(new analysis or "*", new name) → why it may differ, be missing or be new. The name "*" stands for the whole answer, which is
missing, new or refused in one version only. A field of the old version only is listed under the new name that it would have."""

# The settings of every analysis

SUBJECTS = ("view", "trace", "model", "text", "texts")
"""The subjects of an analysis. All other parameters are settings."""
CONTROL_MODEL, CONTROL_TRACE, ALL_TEXTS = "<untrained model>", "<trace of the untrained model>", "<all texts>"
"""Placeholders in the table of settings, replaced for each model and text."""
Settings = dict[str, Any]
SETTINGS: dict[str, tuple[Settings, ...]] = {
    "frames": ({}, {"token": 3, "target": 7, "count": 3, "keep_massive": True}),
    "readout": ({"draws": 8}, {"draws": 8, "token": 4, "target": 9, "top": 3}),
    "trajectory": (
        {"draws": 8},
        {"draws": 8, "space": "sphere"},
        {"draws": 8, "space": "normed", "keep_massive": True},
    ),
    "transport": ({"draws": 8}, {"draws": 4, "space": "sphere", "grain": "half", "strides": (1, 2)}),
    "geometry_kept": ({}, {"space": "normed", "nearest": 3, "pairs": 40, "strides": (1, 2)}),
    "clusters": ({}, {"space": "sphere", "grain": "half", "angle": 1.0}),
    "density_clusters": ({}, {"space": "sphere", "least": 3}),
    "purity": ({"draws": 8},),
    "senses": ({"draws": 50, "control": CONTROL_MODEL},),
    "relatedness": ({"draws": 50, "control": CONTROL_MODEL},),
    "charts": ({"draws": 4}, {"draws": 4, "space": "sphere", "nearest": 6, "dimension": 2}),
    "massive_tokens": ({}, {"times": 1.02, "top": 2}),
    "energy": ({}, {"keep_massive": True}),
    "scores": ({}, {"keep_massive": True}),
    "agreement": ({"draws": 8}, {"draws": 8, "least": 4, "queries": 6, "control": CONTROL_TRACE}),
    "distortion": ({"draws": 4}, {"draws": 4, "nearest": 3, "rows": 10}),
    "distorted_pairs": ({}, {"layer": 0, "head": 1, "image": "content", "top": 3}),
    "stack": ({"draws": 4}, {"draws": 4, "image": "key"}),
    "operators": ({"draws": 19}, {"draws": 19, "raw": True}),
    "composition": ({}, {"top": 3}),
    "relation_swap": ({"draws": 2}, {"draws": 2, "token": 5, "control": CONTROL_TRACE}),
    "head_types": ({}, {"threshold": 0.2, "reach": 2}, {"trace": None}),
    "head_statistics": ({},),
    "score_attribution": ({}, {"layer": 0, "head": 1, "query": 6, "key": 3}),
    "prefix_stability": ({"least": 4},),
    "rollout": ({}, {"token": 5, "probes": 4}),
    "heat": ({"draws": 3}, {"draws": 3, "times": (1, 3)}),
    "fixed_point": (
        {"draws": 8, "iterations": 8},
        {"draws": 8, "iterations": 4, "layers": [1], "control": CONTROL_TRACE},
    ),
    "boundary": ({"iterations": 8, "layers": [0, 1]},),
    "reversed_attention": ({}, {"target": 7, "token": 4}),
    "attention_patching": ({}, {"target": 7, "token": 4, "etas": (-0.1, 0.0, 0.1), "heads": [(0, 1), (1, 0)]}),
    "surgery": ({}, {"F": "rank 3", "heads": [(0, 1)]}, {"M": "skew", "text": ALL_TEXTS}, {"each": True}),
    "decay": ({}, {"F": "symmetric", "draws": 2}, {"M": "rank 3", "text": ALL_TEXTS}),
    "faithfulness": ({"texts": ALL_TEXTS, "draws": 2}, {"targets": 5, "foils": 6, "draws": 2, "shares": (0.0, 0.5)}),
}
"""Analysis → the settings of each call. An analysis that is not listed is called once, with its defaults."""
SENSES = {
    str(token_id): {
        "a": [[3, 4, token_id], [5, 6, 9, token_id]],
        "b": [[token_id + 1, 30, token_id], [21, 12 + token_id, token_id]],
    }
    for token_id in (7, 9, 14, 17, 20)
}
GROUPS = {str(token_id): [[token_id], [token_id + 1], [token_id + 15]] for token_id in (7, 9, 11, 13, 15)}
CARRIERS = [[3, 4], [19, 5, 6]]
TOKEN_ID_SETTINGS: dict[str, tuple[Settings, ...]] = {
    "senses": ({"draws": 50, "words": SENSES, "control": CONTROL_MODEL},),
    "relatedness": ({"draws": 50, "words": GROUPS, "carriers": CARRIERS, "control": CONTROL_MODEL},),
}
"""Settings that differ for models without a tokenizer."""
CHEAP = ["trajectory", "transport", "clusters", "energy", "scores", "agreement", "composition", "head_types", "surgery"]
"""The analyses of --quick."""

# Models and texts

TEXTS = {
    "short": "The king kept his gold in the bank near the river.",
    "medium": "The king kept his gold in the bank, and the children played on the bank of the river until the sun went down.",
    "long": "The king kept his gold in the bank, and the children played on the bank of the river. The river went to the sea, "
    "and the sea was great and deep. One day the king took the gold from the bank, put it in a ship and sent the ship down the",
}
LENGTHS = {"short": 12, "medium": 25, "long": 60}
"""Tokens of the random texts for models without a tokenizer."""
NO_TEXT = "weights"
"""The name of the text for analyses that need no text."""
PACKAGED: dict[str, Settings] = {
    "default": {},
    "default_float64": {"dtype": "float64"},
    "untrained": {"untrained": True},
}
"""The packaged model, by name: the arguments of rs.load."""
VOCABULARY = 40
SPECIAL = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": VOCABULARY}
PLAIN = {**SIZES, **SPECIAL, "intermediate_size": 24, "max_position_embeddings": 96}
GROUPED = {**PLAIN, "num_key_value_heads": 2}
GPT2 = {"n_layer": 2, "n_head": 4, "n_embd": 32, "vocab_size": VOCABULARY, "n_positions": 96, **SPECIAL}
OPT = {**SIZES, **SPECIAL, "max_position_embeddings": 96, "ffn_dim": 24, "word_embed_proj_dim": 32}
ROBERTA = {**PLAIN, "pad_token_id": 1, "bos_token_id": 0}
YARN = {"rope_theta": 100.0, "rope_type": "yarn", "factor": 6.0, "original_max_position_embeddings": 16}
TWO_WINDOWS = {"sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"]}
HUGGING_FACE: dict[str, tuple[str, str, dict[str, Any]]] = {
    "gpt2": ("GPT2LMHeadModel", "GPT2Config", GPT2),
    "gpt2_by_depth": ("GPT2LMHeadModel", "GPT2Config", {**GPT2, "scale_attn_by_inverse_layer_idx": True}),
    "llama": ("LlamaForCausalLM", "LlamaConfig", {**GROUPED, "attention_bias": True}),
    "llama_yarn": ("LlamaForCausalLM", "LlamaConfig", {**GROUPED, "rope_parameters": YARN}),
    "mistral": ("MistralForCausalLM", "MistralConfig", {**GROUPED, "sliding_window": 5, "head_dim": 16}),
    "qwen2": ("Qwen2ForCausalLM", "Qwen2Config", {**GROUPED, **TWO_WINDOWS, "use_sliding_window": True}),
    "qwen3": ("Qwen3ForCausalLM", "Qwen3Config", {**GROUPED, "head_dim": 16, "attention_bias": True}),
    "gpt_neox": ("GPTNeoXForCausalLM", "GPTNeoXConfig", {**PLAIN, "rotary_pct": 0.5}),
    "gpt_neox_sequential": ("GPTNeoXForCausalLM", "GPTNeoXConfig", {**PLAIN, "use_parallel_residual": False}),
    "opt": ("OPTForCausalLM", "OPTConfig", OPT),
    "opt_post_norm": ("OPTForCausalLM", "OPTConfig", {**OPT, "word_embed_proj_dim": 12, "do_layer_norm_before": False}),
    "gemma3_text": ("Gemma3ForCausalLM", "Gemma3TextConfig", {**GROUPED, **TWO_WINDOWS, "head_dim": 16}),
    "phi3": ("Phi3ForCausalLM", "Phi3Config", {**GROUPED, "sliding_window": 6}),
    "bert": ("BertForMaskedLM", "BertConfig", PLAIN),
    "bert_without_head": ("BertModel", "BertConfig", PLAIN),
    "roberta": ("RobertaForMaskedLM", "RobertaConfig", ROBERTA),
}
"""Tiny models of every model type: name → class, class of the config, fields of the config."""
OWN = {
    "model_type": "rheoscope",
    "vocabulary": VOCABULARY,
    "width": 32,
    "depth": 2,
    "heads": 4,
    "context": 96,
    "hidden": 24,
}
OWN_CONFIGS: dict[str, dict[str, Any]] = {
    "own_decoder": {**OWN, "kv_heads": 2, "tied": False},
    "own_encoder": {
        **OWN,
        "form": "encoder",
        "placement": "post",
        "norm": "layer",
        "position": "sinusoidal",
        "bias": True,
    },
    "own_alibi": {**OWN, "position": "alibi", "kv_heads": 2, "head_width": 12, "value_width": 5},
    "own_metric": {**OWN, "mechanism": "metric", "options": {"sigma": 2.0}},
    "own_sigmoid": {**OWN, "mechanism": "sigmoid", "position": "buckets", "norm": "layer", "bias": True},
}
"""Tiny models of this package: name → contents of config.json."""
MODELS = [*PACKAGED, *HUGGING_FACE, *OWN_CONFIGS]
FLOAT32_MODELS = {"default", "untrained"}
"""All other models compute in float64."""

Array = tuple[tuple[str, ...], np.ndarray]
"""Axes and values."""
Arrays = dict[tuple[str, str], Array]
"""("field" or "coordinate" or "attribute", name) → array."""
Answer = str | Arrays
"""Arrays, "refused" or "failed (…)"."""
Answers = dict[tuple[str, int], Answer]
"""(analysis, number of its settings) → answer."""
Part = tuple[str, str]
"""Model and text."""
VERSION = 1
"""Increase it when the code that collects answers changes, so that stored answers are recomputed."""


def inputs_digest() -> str:
    """A hash of everything that determines the answers of a version, except the package itself."""
    tables = (SETTINGS, TOKEN_ID_SETTINGS, TEXTS, LENGTHS, PACKAGED, HUGGING_FACE, OWN_CONFIGS)
    libraries = [metadata.version(name) for name in ("torch", "numpy", "scipy", "transformers", "xarray")]
    return hashlib.sha256(repr((VERSION, tables, libraries)).encode()).hexdigest()[:12]


# The answers of one version of the package


@dataclass(frozen=True)
class Subject:
    """A loaded model, its untrained control and its texts."""

    package: Any
    model: Any
    texts: dict[str, Any]
    source: Any = None
    options: Settings = field(default_factory=dict)

    @cached_property
    def control(self) -> Any:
        return self.package.load(self.source, **self.options | {"untrained": True})

    def value(self, parameter: str, text: str) -> Any:
        """The argument for a subject parameter."""
        if parameter == "model":
            return self.model
        if parameter == "view":
            return self.model.view
        return self.model.trace(self.texts[text]) if parameter == "trace" else self.texts[text]

    def setting(self, value: Any, text: str) -> Any:
        """The value of a setting, with placeholders replaced."""
        if value == CONTROL_MODEL:
            return self.control
        if value == CONTROL_TRACE:
            return self.control.trace(self.texts[text])
        return list(self.texts.values()) if value == ALL_TEXTS else value


def load_subject(package: Any, name: str) -> Subject:
    """A model of the tables by its name."""
    if name in PACKAGED:
        return Subject(package, package.load(**PACKAGED[name]), TEXTS, options=PACKAGED[name])
    source = own_network(package, name) if name in OWN_CONFIGS else hugging_face_network(name)
    texts = {text: random_ids(length) for text, length in LENGTHS.items()}
    return Subject(package, package.load(source), texts, source)


def hugging_face_network(name: str) -> Any:
    import transformers

    model_class, config_class, fields = HUGGING_FACE[name]
    return randomise(getattr(transformers, model_class)(getattr(transformers, config_class)(**fields)))


def own_network(package: Any, name: str) -> Any:
    with tempfile.TemporaryDirectory() as directory:
        (Path(directory) / "config.json").write_text(json.dumps(OWN_CONFIGS[name]))
        return randomise(package.load(directory, untrained=True).network)


def randomise(network: Any) -> Any:
    """The network in float64 with every parameter random, gains near 1. The names of parameters are the seeds."""
    import torch

    network = network.double().eval()
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
            centre = 1.0 if bool((parameter == 1).all()) else 0.0
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.copy_(centre + 0.25 * noise)
    return network


def random_ids(length: int) -> list[int]:
    import torch

    return torch.randint(3, VOCABULARY, (length,), generator=torch.Generator().manual_seed(length)).tolist()


def collect(package: Any, subject: Subject, text: str, version: str, analyses: Iterable[str] = ()) -> Answers:
    """The answers of a version ("old" or "new") about a text or the weights. `analyses` are old names; none means all."""
    old_names = {new: old for old, new in RENAMED_ANALYSES.items()} if version == "new" else {}
    selection, answers = set(analyses), Answers()
    for name in package.analyses().index:
        old_name = old_names.get(name, name)
        function = getattr(package, name)
        needs_text = bool({"trace", "text", "texts"} & set(inspect.signature(function).parameters))
        if needs_text == (text == NO_TEXT) or (selection and old_name not in selection):
            continue
        for number, settings in enumerate(settings_of(old_name, subject)):
            call = arguments_of(function, old_name, settings, subject, text, version)
            answers[name, number] = answer(package, function, call)
    return answers


def settings_of(analysis: str, subject: Subject) -> tuple[Settings, ...]:
    table = SETTINGS if subject.source is None else SETTINGS | TOKEN_ID_SETTINGS
    return table.get(analysis, ({},))


def arguments_of(
    function: Any, analysis: str, settings: Settings, subject: Subject, text: str, version: str
) -> dict[str, Any]:
    """The arguments of a call, under the names of the version."""
    parameters = inspect.signature(function).parameters
    call = {name: subject.value(name, text) for name in SUBJECTS if name in parameters}
    for old_name, old_value in settings.items():
        name, value = old_name, old_value
        if version == "new":
            name = lookup(RENAMED_SETTINGS, analysis, old_name, old_name)
            values = lookup(RENAMED_SETTING_VALUES, analysis, old_name, {})
            value = values.get(old_value, old_value) if values else old_value
        if name not in parameters:
            sys.exit(f"{function.__name__} has no setting {name}; add ({analysis!r}, {old_name!r}) to RENAMED_SETTINGS")
        call[name] = subject.setting(value, text)
    return call


def lookup(table: dict[tuple[str, str], Any], analysis: str, name: str, default: Any) -> Any:
    """The entry for one analysis, or else the entry for all of them."""
    return table.get((analysis, name), table.get(("*", name), default))


def answer(package: Any, function: Any, call: dict[str, Any]) -> Answer:
    try:
        with warnings.catch_warnings(action="ignore"):
            dataset = function(**call)
    except package.RheoscopeError:
        return "refused"
    except Exception as error:  # an error in one version is a difference, and the comparison continues
        print(f"{function.__name__}: {type(error).__name__}: {error}", file=sys.stderr)
        return f"failed ({type(error).__name__})"
    fields = {("field", str(name)): (variable.dims, variable.values) for name, variable in dataset.data_vars.items()}
    fields |= {("coordinate", str(name)): (variable.dims, variable.values) for name, variable in dataset.coords.items()}
    numbers = {str(name): numeric(value) for name, value in dataset.attrs.items()}
    return fields | {("attribute", name): ((), value) for name, value in numbers.items() if value is not None}


def numeric(value: Any) -> np.ndarray | None:
    """An attribute as an array of numbers, with NaN at the end of each inner list. None if it contains text."""
    entries = list(flatten(value)) if isinstance(value, list | tuple) else value
    array = np.asarray(entries)
    return array if array.dtype.kind in "biuf" else None


def flatten(values: Iterable[Any]) -> Iterator[Any]:
    for value in values:
        if isinstance(value, list | tuple):
            yield from flatten(value)
            yield np.nan
        else:
            yield value


def collect_parts(request: argparse.Namespace) -> None:
    """Write the answers of the version that is on the path of this process, one file for each part."""
    import torch

    import rheoscope

    home = Path(rheoscope.__file__).resolve()
    if not home.is_relative_to(Path(request.tree).resolve()):
        sys.exit(f"rheoscope was imported from {home}, not from {request.tree}")
    torch.set_num_threads(1)
    parts = [tuple(part.split(":")) for part in request.parts.split(",")]
    for model, group in itertools.groupby(parts, key=lambda part: part[0]):
        subject = load_subject(rheoscope, model)
        for part in group:
            start = time.perf_counter()
            answers = collect(rheoscope, subject, part[1], request.collect, split(request.analyses))
            write(Path(request.out), part, answers)
            seconds = time.perf_counter() - start
            line = f"{request.collect} version, {model}, {part[1]}: {len(answers)} answers in {seconds:.1f} s"
            print(line, file=sys.stderr, flush=True)


def split(names: str | None) -> list[str]:
    return [] if not names else names.split(",")


def file_of(folder: Path, part: Part) -> Path:
    return folder / f"{part[0]}.{part[1]}.pickle"


def write(folder: Path, part: Part, answers: Answers) -> None:
    """Store the answers atomically."""
    folder.mkdir(parents=True, exist_ok=True)
    unfinished = file_of(folder, part).with_suffix(f".{os.getpid()}")
    unfinished.write_bytes(pickle.dumps(answers))
    unfinished.replace(file_of(folder, part))


# The comparison of two versions


@dataclass
class Tally:
    """Counts of the compared arrays of one analysis."""

    arrays: int = 0
    identical: int = 0
    refused: int = 0
    largest: float = 0.0


@dataclass(frozen=True)
class Difference:
    """A difference in one answer, and its size."""

    problem: str
    where: str
    size: float = np.inf


@dataclass
class Comparison:
    """Counts by analysis, and differences by analysis and name."""

    tallies: dict[str, Tally] = field(default_factory=lambda: defaultdict(Tally))
    differences: dict[tuple[str, str], list[Difference]] = field(default_factory=lambda: defaultdict(list))

    def unexplained(self) -> list[tuple[str, str]]:
        return [key for key in self.differences if explanation(*key) is None]


def explanation(analysis: str, name: str) -> str | None:
    return lookup(EXPECTED_DIFFERENCES, analysis, name, None)


def compare(old: Answers, new: Answers, part: Part, comparison: Comparison) -> None:
    """Add the comparison of all answers about one part."""
    old_keys = {(RENAMED_ANALYSES.get(name, name), number): (name, number) for name, number in old}
    for key in sorted(old_keys.keys() | new.keys()):
        analysis, where = key[0], f"{part[0]}, {part[1]}, settings {key[1]}"
        before, after = old.get(old_keys.get(key, key), "no answer"), new.get(key, "no answer")
        tally = comparison.tallies[analysis]
        if isinstance(before, str) or isinstance(after, str):
            outcomes = [outcome if isinstance(outcome, str) else "an answer" for outcome in (before, after)]
            tally.refused += 1
            if outcomes[0] != outcomes[1]:
                comparison.differences[analysis, "*"].append(Difference(" → ".join(outcomes), where))
            continue
        before = with_new_names(old_keys[key][0], before)
        for name, problem, size in differences(before, after, part[0] not in FLOAT32_MODELS, tally):
            comparison.differences[analysis, name].append(Difference(problem, where, size))


def with_new_names(analysis: str, arrays: Arrays) -> Arrays:
    """An old answer under its new names."""
    renamed: Arrays = {}
    for (kind, name), (axes, values) in arrays.items():
        if kind == "attribute":
            setting = lookup(RENAMED_SETTINGS, analysis, name, name)
            renamed[kind, lookup(RENAMED_ATTRIBUTES, analysis, name, setting)] = axes, values
        else:
            new_axes = tuple(new_name(analysis, axis) for axis in axes)
            renamed[kind, new_name(analysis, name)] = new_axes, with_new_labels(analysis, name, values)
    return renamed


def new_name(analysis: str, name: str) -> str:
    """The new name of a field, coordinate or axis."""
    endings = (ending for ending in RENAMED_SUFFIXES if name.endswith(ending))
    ending = next(endings, "")
    return lookup(RENAMED_FIELDS, analysis, name, name.removesuffix(ending) + RENAMED_SUFFIXES.get(ending, ""))


def with_new_labels(analysis: str, name: str, values: np.ndarray) -> np.ndarray:
    labels = lookup(RENAMED_LABELS, analysis, name, {})
    if not labels or values.dtype.kind not in "UO":
        return values
    renamed = [labels.get(label, label) for label in values.ravel().tolist()]
    return np.array(renamed, dtype=object if values.dtype.kind == "O" else None).reshape(values.shape)


def differences(old: Arrays, new: Arrays, double: bool, tally: Tally) -> Iterator[tuple[str, str, float]]:
    """(name, problem, size) for every array that differs, is missing or is new."""
    for kind, name in sorted(old.keys() | new.keys()):
        if (kind, name) not in new or (kind, name) not in old:
            yield name, f"{kind} is {'missing' if (kind, name) in old else 'new'}", np.inf
            continue
        tally.arrays += 1
        (old_axes, before), (new_axes, after) = old[kind, name], new[kind, name]
        problem, size = shape_problem(before, after), np.inf
        if not problem and old_axes != new_axes:
            problem = f"axes {old_axes} → {new_axes}"
        if not problem:
            tally.identical += identical(before, after)
            problem, size = value_problem(before, after, double)
            tally.largest = max(tally.largest, size)
        if problem:
            yield name, f"{kind}: {problem}", size


def identical(old: np.ndarray, new: np.ndarray) -> bool:
    return old.tobytes() == new.tobytes() if old.dtype.kind == "f" else np.array_equal(old, new)


def shape_problem(old: np.ndarray, new: np.ndarray) -> str:
    """A change of shape or dtype. The length of the longest string is no part of the dtype."""
    old_type, new_type = (x.dtype.kind if x.dtype.kind in "UO" else str(x.dtype) for x in (old, new))
    if old_type != new_type:
        return f"dtype {old.dtype} → {new.dtype}"
    return "" if old.shape == new.shape else f"shape {old.shape} → {new.shape}"


def value_problem(old: np.ndarray, new: np.ndarray, double: bool) -> tuple[str, float]:
    """The difference beyond rounding as text (empty if there is none), and the relative difference of numbers."""
    if old.dtype.kind != "f":
        different = np.atleast_1d(old != new)
        if not different.any():
            return "", 0.0
        first, second = (np.atleast_1d(values)[different][0] for values in (old, new))
        return f"{different.sum()} of {old.size} values, first {first!s:.60} → {second!s:.60}", np.inf
    tolerance, fraction = (1e-9, 1e-6) if double and old.dtype == np.float64 else (1e-5, 1e-2)
    size = relative_difference(old.astype(np.float64), new.astype(np.float64), fraction)
    return f"relative difference {size:.2g}" if size > tolerance else "", size


def relative_difference(old: np.ndarray, new: np.ndarray, fraction: float) -> float:
    """The largest relative difference. It is infinite if only one of two numbers is finite, or if infinities differ."""
    finite = np.isfinite(old) & np.isfinite(new)
    if not np.array_equal(old[~finite], new[~finite], equal_nan=True):
        return np.inf
    old, new = old[finite], new[finite]
    sizes = np.maximum(np.abs(old), np.abs(new))
    if not sizes.size or not sizes.max():
        return 0.0
    return float((np.abs(old - new) / np.maximum(sizes, fraction * sizes.max())).max())


def report(comparison: Comparison) -> str:
    """A row for every analysis, then a line for every difference."""
    lines = [f"{'analysis':20} {'arrays':>7} {'identical':>9} {'refused':>7}  largest relative difference"]
    for name, tally in sorted(comparison.tallies.items()):
        lines.append(f"{name:20} {tally.arrays:7} {tally.identical:9} {tally.refused:7}  {tally.largest:.2g}")
    for (analysis, name), places in sorted(comparison.differences.items()):
        worst, reason = max(places, key=lambda place: place.size), explanation(analysis, name)
        label = "DIFFERENT" if reason is None else f"expected ({reason})"
        count = f"{len(places)} answers, the worst: " if len(places) > 1 else ""
        lines.append(f"{label}: {analysis}.{name}: {worst.problem} ({count}{worst.where})")
    tallies = comparison.tallies.values()
    arrays, identical = sum(tally.arrays for tally in tallies), sum(tally.identical for tally in tallies)
    largest = max((tally.largest for tally in tallies), default=0.0)
    lines.append(f"{len(tallies)} analyses and {arrays} arrays compared, {identical} identical bit for bit")
    lines.append(f"largest relative difference {largest:.2g}, unexplained differences: {len(comparison.unexplained())}")
    return "\n".join(lines)


# Processes and files


@dataclass(frozen=True)
class Version:
    """A source tree and the folders of its answers. New answers go to the first folder."""

    name: str
    tree: Path
    folders: tuple[Path, ...]

    def missing(self, parts: list[Part]) -> list[Part]:
        return [part for part in parts if not any(file_of(folder, part).exists() for folder in self.folders)]

    def answers(self, part: Part) -> Answers:
        files = (file_of(folder, part) for folder in self.folders)
        return pickle.loads(next(file for file in files if file.exists()).read_bytes())


def old_version(request: argparse.Namespace, scratch: Path) -> Version:
    """The old version, from a directory or a commit. Answers are cached for a commit and all analyses only."""
    if Path(request.old).is_dir():
        return Version("old", Path(request.old), (scratch / "old_answers",))
    commit = git("rev-parse", "--verify", f"{request.old}^{{commit}}").decode().strip()
    tree = scratch / "old_tree"
    with tarfile.open(fileobj=io.BytesIO(git("archive", "--format=tar", commit, "src"))) as archive:
        archive.extractall(tree, filter="data")
    if request.cache is None:
        return Version("old", tree, (scratch / "old_answers",))
    cache = (request.cache / f"{commit}-{inputs_digest()}").resolve()
    return Version("old", tree, (scratch / "old_answers", cache) if request.analyses else (cache,))


def git(*argv: str) -> bytes:
    command = ["git", "-C", str(Path(__file__).parents[1]), *argv]
    try:
        return subprocess.run(command, check=True, capture_output=True).stdout
    except subprocess.CalledProcessError as error:
        sys.exit(f"git {' '.join(argv)}: {error.stderr.decode().strip()}")


def run_collectors(versions: Iterable[Version], parts: list[Part], request: argparse.Namespace) -> None:
    """Collect the missing answers of both versions, in `jobs` processes at a time."""
    shares = [
        (version, version.missing(parts)[start :: request.jobs])
        for version in versions
        for start in range(request.jobs)
    ]
    with ThreadPoolExecutor(request.jobs) as pool:
        runs = [pool.submit(run_collector, version, share, request.analyses) for version, share in shares if share]
        failures = [run for run in runs if run.result()]
    if failures:
        sys.exit("a version failed to answer; its error is above")


def run_collector(version: Version, parts: list[Part], analyses: str | None) -> int:
    """Run this file under another version of the package; returns the exit status."""
    source = version.tree.resolve() / "src"
    argv = ["--collect", version.name, "--tree", str(source), "--out", str(version.folders[0])]
    argv += ["--parts", ",".join(":".join(part) for part in parts)]
    argv += ["--analyses", analyses] if analyses else []
    environment = {
        "PYTHONPATH": str(source),
        "HF_HUB_OFFLINE": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, str(Path(__file__).resolve()), *argv]
    return subprocess.run(command, env=os.environ | environment, cwd=version.tree).returncode


def compare_versions(request: argparse.Namespace) -> Comparison:
    comparison, parts = Comparison(), parts_of(request)
    with tempfile.TemporaryDirectory() as directory:
        scratch = Path(directory)
        old, new = old_version(request, scratch), Version("new", request.new, (scratch / "new_answers",))
        run_collectors((old, new), parts, request)
        selection = set(split(request.analyses))
        for part in parts:
            before = {key: answer for key, answer in old.answers(part).items() if not selection or key[0] in selection}
            compare(before, new.answers(part), part, comparison)
    return comparison


def parts_of(request: argparse.Namespace) -> list[Part]:
    """Every model with every text."""
    models = split(request.models) or (["default", "llama"] if request.quick else MODELS)
    texts = ["short"] if request.quick else list(TEXTS)
    return [(model, text) for model in models for text in (NO_TEXT, *texts)]


def compare_with_itself() -> Comparison:
    """A tiny model, loaded twice in this process."""
    import rheoscope

    comparison, part = Comparison(), ("own_decoder", "short")
    first, second = (
        collect(rheoscope, load_subject(rheoscope, part[0]), part[1], "new", ("trajectory", "scores")) for _ in range(2)
    )
    compare(first, second, part, comparison)
    return comparison


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = make_parser(__doc__)
    parser.add_argument("old", nargs="?", metavar="OLD", help="a commit, or the directory of a checkout")
    parser.add_argument(
        "--new",
        type=Path,
        default=Path(__file__).parents[1],
        help="the directory of the new version (default: this checkout)",
    )
    parser.add_argument("--analyses", help="only these, by their old names")
    parser.add_argument("--models", help=f"only these of {', '.join(MODELS)}")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument("--cache", type=Path, help="directory that keeps the answers of old commits")
    for hidden in ("--collect", "--tree", "--out", "--parts"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    request = parser.parse_args(argv)
    if not (request.old or request.smallest or request.collect):
        parser.error("OLD is required: a commit or the directory of a checkout")
    if request.quick and not request.analyses:
        request.analyses = ",".join(CHEAP)
    for names, table in ((request.analyses, SETTINGS), (request.models, MODELS)):
        if unknown := sorted(set(split(names)) - set(table)):
            parser.error(f"unknown: {', '.join(unknown)}; expected {', '.join(table)}")
    return request


def main(argv: Sequence[str] | None = None) -> None:
    request = parse(argv)
    if request.collect:
        collect_parts(request)
        return
    comparison = compare_with_itself() if request.smallest else compare_versions(request)
    print(report(comparison))
    if comparison.unexplained():
        sys.exit(1)


if __name__ == "__main__":
    main()
