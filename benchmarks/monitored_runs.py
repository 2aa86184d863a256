"""Shared by benchmarks/training_monitor.py: tiny networks, four tasks, healthy runs and runs that are made to fail."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

import rheoscope as rs

VOCABULARY, TOKENS, BATCH, HELD_OUT = 64, 32, 8, 16
EVALUATE_EVERY = 10
RISE = 0.1
"""The rise of the held-out loss above its running minimum that counts as a failure, in nats per token."""


def topic(generator: torch.Generator, n_texts: int) -> Tensor:
    """Each text has six tokens of its own, in random order: the best guess needs attention to many tokens."""
    words = torch.stack([torch.randperm(VOCABULARY, generator=generator)[:6] for _ in range(n_texts)])
    return words.gather(1, torch.randint(6, (n_texts, TOKENS), generator=generator))


def motif(generator: torch.Generator, n_texts: int) -> Tensor:
    """Ten random tokens, repeated: the best guess needs sharp attention to one token."""
    return torch.randint(VOCABULARY, (n_texts, 10), generator=generator).repeat(1, 4)[:, :TOKENS]


def chain(generator: torch.Generator, n_texts: int) -> Tensor:
    """The next token follows from the last one, with random jumps: attention has nothing to learn."""
    columns = [torch.randint(VOCABULARY, (n_texts,), generator=generator)]
    for _ in range(TOKENS - 1):
        jump = torch.rand(n_texts, generator=generator) < 0.2
        random = torch.randint(VOCABULARY, (n_texts,), generator=generator)
        columns.append(torch.where(jump, random, (columns[-1] * 5 + 3) % VOCABULARY))
    return torch.stack(columns, 1)


def mixture(generator: torch.Generator, n_texts: int) -> Tensor:
    """Texts of all three kinds."""
    kinds = [kind(generator, -(-n_texts // 3)) for kind in (topic, motif, chain)]
    return torch.stack(kinds, 1).flatten(0, 1)[:n_texts]


TASKS: dict[str, Callable[[torch.Generator, int], Tensor]] = {
    "topic": topic,
    "motif": motif,
    "chain": chain,
    "mixture": mixture,
}


@dataclass(frozen=True)
class Run:
    """A training run. `failure` is "none", "scale" (W_Q and W_K grow) or "rate" (their learning rate grows, without weight decay)."""

    architecture: str
    task: str
    width: int
    layers: int
    heads: int
    rate: float
    seed: int
    steps: int = 400
    failure: str = "none"


@dataclass
class Outcome:
    """Held-out losses by step, the step at which the loss has risen, the alarms, and the extreme values."""

    losses: dict[int, float] = field(default_factory=dict)
    rise_step: int | None = None
    monitor: Any = None

    def first_alarm(self, rule: str) -> int | None:
        return next((alarm.step for alarm in self.monitor.alarms if alarm.rule == rule), None)


def network(run: Run) -> nn.Module:
    """A network of transformers or of this package, with its initial weights."""
    import transformers as hf

    torch.manual_seed(run.seed)
    d, n, h = run.width, run.layers, run.heads
    special = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0, "vocab_size": VOCABULARY}
    wide = special | {"hidden_size": d, "num_hidden_layers": n, "num_attention_heads": h, "max_position_embeddings": 64}
    gated = wide | {"intermediate_size": 2 * d}
    if run.architecture == "native":
        from rheoscope.models.config import Config
        from rheoscope.models.transformer import build

        return build(Config(vocabulary=VOCABULARY, width=d, depth=n, heads=h, context=64))
    if run.architecture == "gpt2":
        return hf.GPT2LMHeadModel(
            hf.GPT2Config(n_embd=d, n_layer=n, n_head=h, n_positions=64, attn_pdrop=0.0, **special)
        )
    if run.architecture == "opt":
        return hf.OPTForCausalLM(hf.OPTConfig(ffn_dim=2 * d, word_embed_proj_dim=d, dropout=0.0, **wide))
    if run.architecture == "llama":
        return hf.LlamaForCausalLM(hf.LlamaConfig(num_key_value_heads=h, **gated))
    if run.architecture == "mistral":
        return hf.MistralForCausalLM(hf.MistralConfig(num_key_value_heads=max(1, h // 2), head_dim=d // h, **gated))
    if run.architecture == "qwen3":
        return hf.Qwen3ForCausalLM(hf.Qwen3Config(num_key_value_heads=h, head_dim=d // h, **gated))
    return hf.GPTNeoXForCausalLM(hf.GPTNeoXConfig(**gated))


def loss_of(net: nn.Module, ids: Tensor) -> Tensor:
    """Nats per token of the next tokens."""
    out = net(ids)
    logits = out if isinstance(out, Tensor) else out.logits
    return nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


def query_key_parts(net: nn.Module) -> Iterator[Tensor]:
    """The parts of the weights that make queries and keys, as views."""
    for name, weight in net.named_parameters():
        if name.endswith(("q_proj.weight", "k_proj.weight")):
            yield weight.data
        elif name.endswith("c_attn.weight"):  # GPT-2 stores (width, 3 width)
            yield weight.data[:, : 2 * weight.shape[0]]


class Trainer:
    """The steps of a run, with its optimiser and its failure."""

    def __init__(self, run: Run) -> None:
        self.run, self.network = run, network(run).train()
        decay = 0.1 if run.failure == "none" else 0.0
        self.optimiser = torch.optim.AdamW(
            self.network.parameters(), lr=run.rate, betas=(0.9, 0.95), weight_decay=decay
        )
        self.data = torch.Generator().manual_seed(run.seed + 1)
        self.parts = list(query_key_parts(self.network)) if run.failure != "none" else []

    def rate(self, step: int) -> float:
        """Warm-up over 50 steps; healthy runs then follow a cosine to a tenth."""
        warm = self.run.rate * min(1.0, step / 50)
        if self.run.failure != "none":
            return warm
        return warm * (0.55 + 0.45 * float(torch.cos(torch.tensor(torch.pi * step / self.run.steps))))

    def step(self, step: int) -> Tensor:
        """One optimiser step; the failure begins after step 100."""
        for group in self.optimiser.param_groups:
            group["lr"] = self.rate(step)
        loss = loss_of(self.network, TASKS[self.run.task](self.data, BATCH))
        self.optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.network.parameters(), 1.0)
        before = [part.clone() for part in self.parts]
        self.optimiser.step()
        if step > 100:
            for part, old in zip(self.parts, before, strict=True):
                if self.run.failure == "scale":
                    part *= 1.006
                else:
                    part += (part - old) * min(20.0, (step - 100) / 10)
        return loss

    @torch.no_grad()
    def held_out_loss(self) -> float:
        self.network.eval()
        loss = float(loss_of(self.network, TASKS[self.run.task](torch.Generator().manual_seed(5), 4 * HELD_OUT)))
        self.network.train()
        return loss


def plant(trainer: Trainer, kind: str) -> None:
    """Break layer 1 in the weights and in the state of the optimiser: a dead head, a duplicated head, or tokens that become equal."""
    if kind == "rank_collapse":
        embedding = trainer.network.get_input_embeddings().weight  # type: ignore[operator]
        direction = torch.randn(embedding.shape[1], generator=torch.Generator().manual_seed(0))
        embedding.data += 1000 * embedding.data.std() * direction
        return
    for weight, columns in head_slices(trainer.network, trainer.run):
        state = trainer.optimiser.state[weight]
        for tensor in (weight.data, state["exp_avg"], state["exp_avg_sq"]):
            parts = [tensor[:, part] if columns.is_column else tensor[part] for part in columns.heads]
            if kind == "dead_head" and columns.moves_tokens:
                parts[0].zero_()
            elif kind == "duplicated_head":
                parts[1].copy_(parts[0])


@dataclass(frozen=True)
class HeadSlices:
    """Where two heads are in a weight: in its rows or its columns. `moves_tokens`: the weight makes values or outputs."""

    heads: tuple[slice, slice]
    is_column: bool
    moves_tokens: bool


def head_slices(net: nn.Module, run: Run) -> Iterator[tuple[nn.Parameter, HeadSlices]]:
    """The weights and biases of heads 0 and 1 of layer 1 of a GPT-2 or a Llama whose heads have keys of their own."""
    e = run.width // run.heads
    first, second = slice(0, e), slice(e, 2 * e)
    for name, weight in net.named_parameters():
        if "h.1.attn.c_attn" in name:  # GPT-2 stores (width, 3 width)
            for offset in range(3):
                start = offset * run.width
                both = slice(start, start + e), slice(start + e, start + 2 * e)
                yield weight, HeadSlices(both, weight.ndim == 2, offset == 2)
        elif "h.1.attn.c_proj.weight" in name:
            yield weight, HeadSlices((first, second), False, True)
        elif "layers.1.self_attn.o_proj" in name:
            yield weight, HeadSlices((first, second), True, True)
        elif "layers.1.self_attn" in name:
            yield weight, HeadSlices((first, second), False, "v_proj" in name)


def first_check_after(run: Run, kind: str, planted_step: int = 101, every: int = 20) -> tuple[int | None, int]:
    """The step at which a planted fault is reported, and the first check after it was planted."""
    trainer = Trainer(run)
    monitor = rs.Monitor(
        trainer.network, every=every, texts=list(TASKS[run.task](torch.Generator().manual_seed(99), 4))
    )
    for step in range(1, planted_step + 2 * every):
        loss = trainer.step(step)
        if step == planted_step:
            plant(trainer, kind)
        monitor.step(loss)
    reported = next((alarm.step for alarm in monitor.alarms if alarm.rule == kind), None)
    return reported, -(-planted_step // every) * every


def monitored(run: Run, every: int = 20, until_rise: bool = False) -> Outcome:
    """Train with a monitor. A run that is made to fail ends when its loss has risen."""
    trainer, outcome = Trainer(run), Outcome()
    texts = list(TASKS[run.task](torch.Generator().manual_seed(99), 4))
    outcome.monitor = rs.Monitor(trainer.network, every=every, texts=texts)
    for step in range(1, run.steps + 1):
        loss = trainer.step(step)
        outcome.monitor.step(loss)
        if step % EVALUATE_EVERY == 0:
            outcome.losses[step] = trainer.held_out_loss()
            if outcome.rise_step is None and outcome.losses[step] > min(outcome.losses.values()) + RISE:
                outcome.rise_step = step
                if until_rise:
                    break
    return outcome
