"""Is the change tolerable? A pretrained model is fine-tuned after every M was made symmetric, until its loss is back.

    untouched      the model as it is, trained on
    symmetric      M → ½(M + Mᵀ) everywhere at step 0, then free
    symmetric_kept the same at every step: M stays symmetric while the model learns around it
    size, cloud, spectrum    random changes of the same size in E, of the same size on the text, of the same spectrum (`surgery`)

**How a change is carried.** ½(M + Mᵀ) of rank r has rank up to 2r, so no weights of the model hold it. The change ΔM stands beside them
instead, as further columns of queries and keys, x̂ − x̄ through its factors: exact at step 0 for every family (rotations, grouped
heads, QK-norm), and everything of the model stays trainable. A fixed ΔM may be unlearned; `symmetric_kept` makes it anew from the
weights before every step (projected gradient descent). x̄ is the mean of x̂ over one batch of the untouched model, held fixed: a mean
over each text would tell tokens what comes after them.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float, Int
from torch import Generator, Tensor

from rheoscope.attention.definition import for_every_head
from rheoscope.attention.mechanism import Mechanism
from rheoscope.covers import head_replacement
from rheoscope.covers.comparison_arms import CONTROLS
from rheoscope.covers.head_replacement import Operation, plans, reach
from rheoscope.covers.replacements import RELEVANCE
from rheoscope.covers.surgery.analysis import predicting_heads
from rheoscope.covers.text_batches import kept_tokens, losses
from rheoscope.files import write_file
from rheoscope.models.cuda_graph_steps import Recorder, forget_accumulate_grad
from rheoscope.running.runner import Running
from rheoscope.shapes import RheoscopeError
from rheoscope.space.analysis import Analysis, Field
from rheoscope.space.bilinear_form import Form, columns, less, own_form
from rheoscope.space.bilinear_form import with_columns as beside
from rheoscope.space.head import Heads
from rheoscope.space.model import Rewrite
from rheoscope.space.safe_arithmetic import exact

if TYPE_CHECKING:
    import xarray

Windows = Int[Tensor, "_ length"]
Edits = dict[int, Rewrite]
Tell = Callable[[str, int, float], object]
"""Told of every measurement: the arm, tokens seen, held-out loss."""
UNTOUCHED, EDIT, KEPT = "untouched", "symmetric", "symmetric_kept"
ARMS = (UNTOUCHED, EDIT, KEPT, *CONTROLS)
BACK = 1.01
"""A loss is back where it is at most so many times the untouched model's."""


@dataclass(frozen=True)
class Healing:
    """How it is fine-tuned: AdamW at one rate without decay, `batch` windows of `length` tokens a step, measured on `held_out` windows."""

    steps: int = 200
    batch: int = 8
    length: int = 256
    rate: float = 5e-5
    every: int = 20
    held_out: int = 32
    seed: int = 0

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if value < (0 if name == "seed" else 1e-12 if name == "rate" else 2 if name == "length" else 1):
                raise RheoscopeError(
                    f"{name} must be larger, got {value}; type --{name.replace('_', '-')} {getattr(Healing, name)}"
                )

    def measured(self) -> list[int]:
        """The steps after which the loss is measured: 0, every so many, and the last."""
        return sorted({*range(0, self.steps, self.every), self.steps})


def heal(
    model: Running,
    ids: Int[Tensor, " all"],
    out: Path,
    how: Healing | None = None,
    arms: Sequence[str] = ARMS,
    tell: Tell | None = None,
) -> "xarray.Dataset":
    """How many tokens of fine-tuning bring the loss back after every M was made symmetric, beside random changes and no change.

    **Answers** "is comparing tokens in two coordinate systems needed, or can the model learn around its loss?"

    **Gives** (arm, measurement): `loss`, held out; (arm): `tokens_to_heal` until it is within 1 % of the untouched model's first loss,
    `tokens_to_catch_up` until within 1 % of the untouched model trained on as many tokens; NaN where it never was.

    **Laws** all arms see the same batches in the same order and start from the same weights; the change at step 0 is that of
    `surgery` with this x̄; every arm is one file in `out`, renamed into place, so that what is done is not done again; the model
    is as before at the end.
    """
    how, tell = how or Healing(), tell or (lambda *_: None)
    wrong = [arm for arm in arms if arm not in ARMS]
    if wrong:
        raise RheoscopeError(f"unknown arm {wrong[0]!r}; type some of {', '.join(ARMS)}")
    if KEPT in arms and not all(follows(model, heads) for heads in predicting(model)):
        raise RheoscopeError(
            "M is made of copies of the weights (half precision, or gains of 1 + w), which do not follow training; "
            f"type --arms {','.join(arm for arm in arms if arm not in (UNTOUCHED, KEPT)) or EDIT}"
        )
    train, held = cut(ids, how)
    first = batch_of(train, how, 0).to(model.device)
    told = asdict(how) | {"tokens": len(ids), "model": str(model.view.facts["weights"])}
    for arm in dict.fromkeys([UNTOUCHED, *arms]):
        if not done(out, arm, told):
            edits = carried(model, arm, first, how.seed)
            found = trained(model, edits, train, held.to(model.device), how, partial(tell, arm))
            keep(out, arm, {"arm": arm, "settings": told} | found)
    return healed(out)


def cut(ids: Int[Tensor, " all"], how: Healing) -> tuple[Windows, Windows]:
    """Windows to train on, and the last ones to measure on."""
    windows = ids[: len(ids) // how.length * how.length].view(-1, how.length)
    if len(windows) < how.held_out + how.batch:
        raise RheoscopeError(
            f"the text has {len(windows)} windows of {how.length} tokens, {how.held_out} are held out and {how.batch} make a batch; "
            "type more --data, or a smaller --held-out or --length"
        )
    return windows[: -how.held_out], windows[-how.held_out :]


def batch_of(train: Windows, how: Healing, step: int) -> Windows:
    """The windows of a step: the same for every arm."""
    draw = Generator().manual_seed(how.seed * 1_000_003 + step)
    return train[torch.randint(len(train), (how.batch,), generator=draw)]


def carried(model: Running, arm: str, first: Windows, seed: int) -> Edits:
    """What stands beside the weights of every layer in an arm."""
    view = model.view
    chosen = predicting_heads(view, None)
    if arm == UNTOUCHED:
        return {}
    make, draw, found = CONTROLS.get(arm, head_replacement.edit), Generator().manual_seed(seed), {}
    traces = model.trace(list(first.cpu()))
    for plan in plans(view, chosen, "symmetric", None):
        clouds = [plan.heads.norm.hat(exact(one.read_by(plan.layer)))[kept_tokens(one)].detach() for one in traces]
        mean = torch.cat(clouds).mean(0)
        form = fixed(make(plan, draw), clouds[0] - mean, clouds[0])
        now = live(plan.heads) if arm == KEPT else partial(tuple, form)
        found[plan.layer] = Rewrite(adding(plan.heads, mean, now))
    return found


@torch.no_grad()
def fixed(one: Operation, cloud: Float[Tensor, "n d"], hat: Float[Tensor, "n d"]) -> Form:
    """The change of a form as it is now, in tensors of its own: the weights it was made of are about to be trained."""
    by = torch.ones(one.heads.count, 1, 1, device=cloud.device)
    if one.like is not None:
        wanted, there = (reach(*columns(one.heads, form, cloud, hat)) for form in (one.like.form, one.form))
        by = torch.where(there > 0, wanted / torch.where(there > 0, there, 1), 1)[:, None, None]
    return tuple(
        replace(term, left=(by * term.left).detach().clone(), right=term.right.detach().clone()) for term in one.form
    )


def predicting(model: Running) -> list[Heads]:
    """The heads of every layer that is changed."""
    return [model.view.blocks[layer] for layer in predicting_heads(model.view, None)]


def follows(model: Running, heads: Heads) -> bool:
    """Whether all that M is made of lies where the weights lie, and so is trained with them."""
    own = {p.untyped_storage().data_ptr() for p in model.network.parameters()}
    gains = [norm.gain for norm in (heads.norm, heads.q_norm, heads.k_norm) if norm is not None]
    parts = (heads.W_Q, heads.W_K, *(gain for gain in gains if gain is not None))
    return {part.untyped_storage().data_ptr() for part in parts} <= own


def live(heads: Heads) -> Callable[[], Form]:
    """½(M + Mᵀ) − M of the weights as they are: a step goes along the gradient, and then back to where M is symmetric."""

    @torch.no_grad()
    def form() -> Form:
        now = own_form(heads)
        return less(RELEVANCE["symmetric"].make(heads, now, 0), now)

    return form


def adding(heads: Heads, mean: Float[Tensor, " d"], form: Callable[[], Form]) -> Callable[..., tuple[Tensor, None]]:
    """An edit of a layer: scores with those of a form between x̂ − x̄ added to them."""

    def change(x: Tensor, q: Tensor, k: Tensor, v: Tensor, mechanism: Mechanism, out: Tensor) -> tuple[Tensor, None]:
        hat = heads.norm.hat(exact(x))
        k, v = for_every_head(k, q.shape[1]), for_every_head(v, q.shape[1])
        mechanism, q, k = beside(mechanism, q, k, columns(heads, form(), hat - mean, hat))
        return mechanism.attend(q, k, v.to(q.dtype)).to(out.dtype), None

    return change


def trained(
    model: Running, edits: Edits, train: Windows, held: Windows, how: Healing, tell: Callable[[int, float], object]
) -> dict[str, list[Any]]:
    """One arm: tokens seen and held-out losses; the weights are as before at the end."""
    weights = [p for p in model.network.parameters() if p.is_floating_point()]
    before, trainable = [p.detach().clone() for p in weights], [p.requires_grad for p in weights]
    model.network.requires_grad_(True)  # a model that is only looked at may be frozen
    forget_accumulate_grad(weights)  # the View, which is made of them, holds them to the default stream
    on_gpu = model.device.type == "cuda"
    optimiser = torch.optim.AdamW(weights, how.rate, (0.9, 0.95), weight_decay=0.0, capturable=on_gpu)
    # Columns beside a QK-norm take its scale from the View, whose gradients are gathered where no recording may wait.
    normed = bool(edits) and any(heads.q_norm is not None for heads in predicting(model))
    steps, looks = Recorder(on_gpu and not normed), Recorder(on_gpu)

    @torch.enable_grad()
    def learn(batch: Windows) -> Tensor:
        loss = losses(model.run_batch(batch, edits), batch).mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(weights, 1.0)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        return loss.detach()

    found: dict[str, list[Any]] = {"tokens": [], "loss": []}
    try:
        for step in range(how.steps + 1):
            if step in how.measured():
                found["tokens"].append(step * how.batch * how.length)
                found["loss"].append(measure(model, edits, held, how.batch, looks))
                tell(int(found["tokens"][-1]), found["loss"][-1])
            if step < how.steps:
                steps(learn, batch_of(train, how, step).to(model.device))
    finally:
        with torch.no_grad():
            for parameter, kept, was in zip(weights, before, trainable, strict=True):
                parameter.copy_(kept)
                parameter.requires_grad_(was)
    return found


@torch.no_grad()
def measure(model: Running, edits: Edits, held: Windows, batch: int, run: Recorder) -> float:
    """Nats a token on all held-out windows."""

    def nats(part: Windows) -> Tensor:
        return losses(model.run_batch(part, edits), part).double().sum()

    total = sum(run(nats, part) for part in held.split(batch))
    return float(total) / (held.numel() - len(held))


def keep(out: Path, arm: str, found: dict[str, Any]) -> None:
    """One file an arm, renamed into place."""
    out.mkdir(parents=True, exist_ok=True)
    write_file(out / f"{arm}.json", lambda file: file.write_text(json.dumps(found) + "\n"))


def done(out: Path, arm: str, told: dict[str, Any]) -> bool:
    """Whether an arm is there; one that was trained otherwise is refused."""
    file = out / f"{arm}.json"
    if not file.is_file():
        return False
    held = json.loads(file.read_text())["settings"]
    for name, value in told.items():
        if held.get(name) != value:
            raise RheoscopeError(
                f"{file} was made with {name}={held.get(name)}, now {name}={value}; type another --out"
            )
    return True


def healed(out: Path) -> "xarray.Dataset":
    """What the arms in a folder came to."""
    rows = {arm: json.loads((out / f"{arm}.json").read_text()) for arm in ARMS if (out / f"{arm}.json").is_file()}
    if UNTOUCHED not in rows:
        raise RheoscopeError(f"{out} holds no healing; type rheoscope heal --data FILE --out {out}")
    tokens, base = rows[UNTOUCHED]["tokens"], rows[UNTOUCHED]["loss"]
    loss = [row["loss"] for row in rows.values()]
    values = {
        "loss": loss,
        "tokens_to_heal": [first_at(tokens, row, [base[0]] * len(base)) for row in loss],
        "tokens_to_catch_up": [first_at(tokens, row, base) for row in loss],
    }
    settings = {name: str(value) for name, value in rows[UNTOUCHED]["settings"].items()}
    return HEALING.answer(values, {"arm": list(rows), "tokens": tokens}, settings)


def first_at(tokens: Sequence[float], loss: Sequence[float], wanted: Sequence[float]) -> float:
    """The tokens after which a loss is back, NaN where it never was.

    >>> first_at([0, 10, 20], [2.0, 1.5, 1.005], [1.0, 1.0, 1.0])
    20
    """
    there: Iterator[float] = (at for at, own, other in zip(tokens, loss, wanted, strict=True) if own <= BACK * other)
    return next(there, float("nan"))


HEALING = Analysis(
    "healing",
    "How soon is the loss back after every M was made symmetric?",
    heal,
    "model",
    {
        "loss": Field(("arm", "tokens"), "held-out loss after fine-tuning on so many tokens", "nats"),
        "tokens_to_heal": Field(
            ("arm",), "tokens until the loss is within 1 % of the untouched model's at first", "tokens"
        ),
        "tokens_to_catch_up": Field(
            ("arm",), "tokens until the loss is within 1 % of the untouched model's, trained on as many", "tokens"
        ),
    },
)
