"""Cards of tiny models at random weights: five architectures, random texts, and the answers that a card prints."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

import rheoscope as rs
from rheoscope.catalogue import all_claims
from rheoscope.models.config import Config
from rheoscope.models.transformer import Transformer
from rheoscope.report.card import PartAnswer
from rheoscope.shapes import RheoscopeError
from rheoscope.space.claim import Claim, ClaimSample, Measured
from rheoscope.space.traces import Traces
from rheoscope.statistics.claim_answers import MIN_DRAWS, MIN_SHARED_DRAWS, REVERSED, YES, joint_answer

SHAPES = ("default", "gpt2", "llama, grouped keys", "neox, parallel", "opt")
"""RMSNorm and rotary positions, learned positions, grouped keys, parallel blocks, and ReLU with shifted positions."""
VOCABULARY, WIDTH, DEPTH, HEADS = 4096, 16, 2, 2
INITIAL_SD = WIDTH**-0.5
"""Weights of this size keep the length of a point, so that attention is not uniform."""
TEXT_IDS = (300, 4000)
"""Random texts have token ids between these."""
Measurements = dict[str, Mapping[str, Measured]]
"""Claim → part → measurement."""


@dataclass(frozen=True)
class Size:
    """How much is measured."""

    models: int = 40
    """Models of every architecture in part a."""
    n_texts: int = 96
    n_tokens: int = 16
    draws: int = MIN_SHARED_DRAWS
    untrained: int = MIN_DRAWS
    samples: int = 2000
    """Samples of part c."""
    seeds: int = 10
    """Seeds of parts c and d."""
    repeats: int = 40
    """Draws of a planted model in part b."""
    steps: int = 8
    """The most steps of the search for the strength of a planted effect."""
    search: bool = False
    """Whether to search strengths that an earlier run has stored."""
    background: tuple[str, ...] | None = None
    """The other claims of the card of a planted model, by default all."""
    shapes: tuple[str, ...] = SHAPES
    claims: tuple[str, ...] | None = None
    subject: str = "default model"
    """The model and the texts of parts c and d, a name in SUBJECTS."""

    @property
    def label(self) -> str:
        """The settings that change a job."""
        claims = "" if self.claims is None else f", {' '.join(self.claims)}"
        return f"{self.n_texts} x {self.n_tokens} tokens, {self.draws} draws{claims}"


@cache
def shared_tokenizer(is_native: bool) -> Any:
    """The tokenizer of the default model, which knows the words of all lists."""
    tokenizer = rs.load().tokenizer
    if is_native:
        return tokenizer
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def tiny_network(shape: str) -> Any:
    """A network of one of the five architectures."""
    if shape == "default":
        return Transformer(Config(vocabulary=VOCABULARY, width=WIDTH, depth=DEPTH, heads=HEADS, context=128))
    import transformers as tr

    ends = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
    sizes: dict[str, Any] = {"vocab_size": VOCABULARY, "hidden_size": WIDTH, "initializer_range": INITIAL_SD} | ends
    layers: dict[str, Any] = {"num_hidden_layers": DEPTH, "intermediate_size": 2 * WIDTH}
    classes: dict[str, Callable[[], Any]] = {
        "gpt2": lambda: tr.GPT2LMHeadModel(tr.GPT2Config(**sizes, n_layer=DEPTH, n_head=HEADS, n_positions=128)),
        "llama, grouped keys": lambda: tr.LlamaForCausalLM(
            tr.LlamaConfig(**sizes, **layers, num_attention_heads=2 * HEADS, num_key_value_heads=HEADS)
        ),
        "neox, parallel": lambda: tr.GPTNeoXForCausalLM(tr.GPTNeoXConfig(**sizes, **layers, num_attention_heads=HEADS)),
        "opt": lambda: tr.OPTForCausalLM(
            tr.OPTConfig(
                **sizes | {"init_std": INITIAL_SD, "word_embed_proj_dim": WIDTH, "ffn_dim": 2 * WIDTH},
                num_hidden_layers=DEPTH,
                num_attention_heads=HEADS,
                max_position_embeddings=128,
            )
        ),
    }
    return classes[shape]()


def random_model(shape: str, seed: int) -> Any:
    """A model of one of the five architectures at initial weights, which depend on the seed."""
    return rs.load(tiny_network(shape), tokenizer=shared_tokenizer(shape == "default"), untrained=True, seed=seed)


def random_texts(n_texts: int, n_tokens: int, seed: int, ids: tuple[int, int] = TEXT_IDS) -> list[list[int]]:
    """Texts of random token ids."""
    draw = torch.Generator().manual_seed(seed)
    return torch.randint(*ids, (n_texts, n_tokens), generator=draw).tolist()


def text_ids(batches: Sequence[Traces]) -> list[list[Tensor]]:
    """The token ids of every text of every batch, without padding."""
    return [
        [ids[:length] for ids, length in zip(traces.ids, traces.lengths.tolist(), strict=True)] for traces in batches
    ]


def chosen_claims(names: Sequence[str] | None) -> list[Claim]:
    """The claims with these names, by default all."""
    return [claim for claim in all_claims() if names is None or claim.name in names]


@torch.no_grad()
def measure_claims(
    model: Any, texts: Sequence[Sequence[int]], claims: Sequence[Claim], draws: int, seed: int
) -> tuple[Measurements, list[str]]:
    """The measurements of some claims over texts of equal length, and the names of claims that the model refuses."""
    sample = ClaimSample(model, (model.trace(list(texts)),), draws, seed)
    measured: Measurements = {}
    refused = []
    for claim in claims:
        try:
            measured[claim.name] = claim.measure(sample)
        except RheoscopeError:
            refused.append(claim.name)
    return measured, refused


def mean_effects(measured: Mapping[str, Mapping[str, Measured]]) -> dict[str, float]:
    """The mean effect of every part, as "claim/part"."""
    return {
        f"{claim}/{part}": float(values.effects.double().nanmean())
        for claim, parts in measured.items()
        for part, values in parts.items()
    }


def control_means(models: Sequence[Mapping[str, float]]) -> dict[tuple[str, str], Tensor]:
    """(claim, part) → the mean effect of every untrained model."""
    return {
        (key.split("/")[0], key.split("/")[1]): torch.tensor([means[key] for means in models], dtype=torch.float64)
        for key in models[0]
    }


def printed_answers(rows: Sequence[PartAnswer]) -> dict[str, str]:
    """Claim → the answer that a card prints."""
    names = dict.fromkeys(row.claim.name for row in rows)
    return {name: joint_answer([row.answer for row in rows if row.claim.name == name]) for name in names}


def clear_answers(answers: Mapping[str, str]) -> dict[str, str]:
    """The claims that hold or are reversed."""
    return {name: answer for name, answer in answers.items() if answer in (YES, REVERSED)}


def row_numbers(rows: Sequence[PartAnswer]) -> dict[str, dict[str, float]]:
    """Interval → the numbers that decide its answer."""
    return {
        row.name: {
            "estimate": row.interval.estimate,
            "low": row.interval.low,
            "high": row.interval.high,
            "random_mean": row.criterion.random_mean,
            "threshold": row.criterion.random_limit,
        }
        for row in rows
    }
