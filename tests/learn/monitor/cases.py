"""Shared by the tests of the monitor: tiny networks, a fixed batch, and a few steps of training."""

from typing import Any

import numpy as np
import torch
import transformers as hf
from torch import Tensor

from rheoscope.learn.monitor.quantities import Reading
from tests.pretrained.cases import CASES, LENGTH, VOCABULARY, randomised

TEXTS = [torch.randint(VOCABULARY, (LENGTH,), generator=torch.Generator().manual_seed(seed)) for seed in (1, 2)]


def network(name: str = "gpt2", **fields: Any) -> Any:
    """A network of one of the tiny families, which nothing else uses."""
    torch.manual_seed(0)
    return randomised(CASES[name]())


def small_gpt2(dropout: float = 0.1) -> Any:
    """A GPT-2 of two layers with its initial weights, and dropout."""
    torch.manual_seed(0)
    rates = {"resid_pdrop": dropout, "embd_pdrop": dropout, "attn_pdrop": dropout}
    special = {"bos_token_id": 0, "eos_token_id": 0}
    config = hf.GPT2Config(n_layer=2, n_head=4, n_embd=16, vocab_size=VOCABULARY, n_positions=32, **rates, **special)
    return hf.GPT2LMHeadModel(config).train()


def batch(step: int) -> Tensor:
    return torch.randint(VOCABULARY, (3, LENGTH), generator=torch.Generator().manual_seed(step))


def train(net: Any, monitor: Any = None, steps: int = 6, rate: float = 1e-2, call: Any = None) -> list[Tensor]:
    """Some steps of AdamW, and the weights afterwards. `call` wraps the network."""
    optimiser = torch.optim.AdamW(net.parameters(), lr=rate)
    torch.manual_seed(1)
    for step in range(steps):
        loss = (net if call is None else call)(input_ids=batch(step), labels=batch(step)).loss
        loss.backward()
        optimiser.step()
        optimiser.zero_grad()
        if monitor is not None:
            monitor.step(loss)
    return [x.detach().clone() for x in net.parameters()]


def equal(first: list[Tensor], second: list[Tensor]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(first, second, strict=True))


def reading(step: int, **values: Any) -> Reading:
    """A reading with these quantities."""
    return Reading(step, {name: np.array(value, dtype=float) for name, value in values.items()}, {})
