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

from rheoscope.attention.definition import repeat_kv_heads
from rheoscope.attention.mechanism import Mechanism
from rheoscope.covers import head_replacement
from rheoscope.covers.comparison_arms import CONTROLS
from rheoscope.covers.head_replacement import OperatorEdit, plan_edits, score_norm
from rheoscope.covers.replacements import RELEVANCE
from rheoscope.covers.surgery.analysis import select_predicting_heads
from rheoscope.covers.text_batches import included_tokens, next_token_losses
from rheoscope.files import write_file
from rheoscope.models.cuda_graph_steps import Recorder, reset_accumulate_grad
from rheoscope.running.runner import RunnableModel
from rheoscope.shapes import RheoscopeError
from rheoscope.space.analysis import Analysis, Field
from rheoscope.space.bilinear_form import Form, heads_form, query_key_columns, subtract_forms
from rheoscope.space.bilinear_form import with_dot_columns as with_dot_columns
from rheoscope.space.head import Heads
from rheoscope.space.model import Rewrite
from rheoscope.space.safe_arithmetic import at_least_float32

if TYPE_CHECKING:
    import xarray

Windows = Int[Tensor, "_ length"]
LayerEdits = dict[int, Rewrite]
OnMeasurement = Callable[[str, int, float], object]
"""Told of every measurement: the arm, tokens seen, held-out loss."""
UNTOUCHED, SYMMETRIC, SYMMETRIC_KEPT = "untouched", "symmetric", "symmetric_kept"
ARMS = (UNTOUCHED, SYMMETRIC, SYMMETRIC_KEPT, *CONTROLS)
RECOVERY_FACTOR = 1.01
"""A loss is back where it is at most so many times the untouched model's."""


@dataclass(frozen=True)
class HealingSettings:
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
                    f"{name} must be larger, got {value}; type --{name.replace('_', '-')} {getattr(HealingSettings, name)}"
                )

    def evaluation_steps(self) -> list[int]:
        """The steps after which the loss is measured: 0, every so many, and the last."""
        return sorted({*range(0, self.steps, self.every), self.steps})


def heal(
    model: RunnableModel,
    ids: Int[Tensor, " all"],
    out: Path,
    settings: HealingSettings | None = None,
    arms: Sequence[str] = ARMS,
    on_measurement: OnMeasurement | None = None,
) -> "xarray.Dataset":
    """How many tokens of fine-tuning bring the loss back after every M was made symmetric, beside random changes and no change.

    **Answers** "is comparing tokens in two coordinate systems needed, or can the model learn around its loss?"

    **Gives** (arm, measurement): `loss`, held out; (arm): `tokens_to_heal` until it is within 1 % of the untouched model's first loss,
    `tokens_to_catch_up` until within 1 % of the untouched model trained on as many tokens; NaN where it never was.

    **Laws** all arms see the same batches in the same order and start from the same weights; the change at step 0 is that of
    `surgery` with this x̄; every arm is one file in `out`, renamed into place, so that what is done is not done again; the model
    is as before at the end.
    """
    settings, on_measurement = settings or HealingSettings(), on_measurement or (lambda *_: None)
    unknown_arms = [arm for arm in arms if arm not in ARMS]
    if unknown_arms:
        raise RheoscopeError(f"unknown arm {unknown_arms[0]!r}; type some of {', '.join(ARMS)}")
    if SYMMETRIC_KEPT in arms and not all(shares_weights(model, heads) for heads in edited_heads(model)):
        raise RheoscopeError(
            "M is made of copies of the weights (half precision, or gains of 1 + w), which do not follow training; "
            f"type --arms {','.join(arm for arm in arms if arm not in (UNTOUCHED, SYMMETRIC_KEPT)) or SYMMETRIC}"
        )
    train_windows, held_out_windows = split_windows(ids, settings)
    first_batch = sample_batch(train_windows, settings, 0).to(model.device)
    recorded_settings = asdict(settings) | {"tokens": len(ids), "model": str(model.view.facts["weights"])}
    for arm in dict.fromkeys([UNTOUCHED, *arms]):
        if not is_arm_done(out, arm, recorded_settings):
            edits = make_arm_edits(model, arm, first_batch, settings.seed)
            measurements = train_arm(
                model, edits, train_windows, held_out_windows.to(model.device), settings, partial(on_measurement, arm)
            )
            save_arm(out, arm, {"arm": arm, "settings": recorded_settings} | measurements)
    return read_healing(out)


def split_windows(ids: Int[Tensor, " all"], settings: HealingSettings) -> tuple[Windows, Windows]:
    """Windows to train on, and the last ones to measure on."""
    windows = ids[: len(ids) // settings.length * settings.length].view(-1, settings.length)
    if len(windows) < settings.held_out + settings.batch:
        raise RheoscopeError(
            f"the text has {len(windows)} windows of {settings.length} tokens, {settings.held_out} are held "
            f"out and {settings.batch} make a batch; "
            "type more --data, or a smaller --held-out or --length"
        )
    return windows[: -settings.held_out], windows[-settings.held_out :]


def sample_batch(train_windows: Windows, settings: HealingSettings, step: int) -> Windows:
    """The windows of a step: the same for every arm."""
    generator = Generator().manual_seed(settings.seed * 1_000_003 + step)
    return train_windows[torch.randint(len(train_windows), (settings.batch,), generator=generator)]


def make_arm_edits(model: RunnableModel, arm: str, first_batch: Windows, seed: int) -> LayerEdits:
    """What stands beside the weights of every layer in an arm."""
    view = model.view
    selected_heads = select_predicting_heads(view, None)
    if arm == UNTOUCHED:
        return {}
    make_edit, generator, edits = (
        CONTROLS.get(arm, head_replacement.replacement_edit),
        Generator().manual_seed(seed),
        {},
    )
    traces = model.trace(list(first_batch.cpu()))
    for plan in plan_edits(view, selected_heads, "symmetric", None):
        clouds = [
            plan.heads.norm.normalise(at_least_float32(trace.layer_input(plan.layer)))[included_tokens(trace)].detach()
            for trace in traces
        ]
        mean = torch.cat(clouds).mean(0)
        form = detach_change(make_edit(plan, generator), clouds[0] - mean, clouds[0])
        current_form = symmetrising_change(plan.heads) if arm == SYMMETRIC_KEPT else partial(tuple, form)
        edits[plan.layer] = Rewrite(make_score_edit(plan.heads, mean, current_form))
    return edits


@torch.no_grad()
def detach_change(edit: OperatorEdit, cloud: Float[Tensor, "n d"], x_hat: Float[Tensor, "n d"]) -> Form:
    """The change of a form as it is now, in tensors of its own: the weights it was made of are about to be trained."""
    scale = torch.ones(edit.heads.n_heads, 1, 1, device=cloud.device)
    if edit.size_reference is not None:
        target_norm, actual_norm = (
            score_norm(*query_key_columns(edit.heads, form, cloud, x_hat))
            for form in (edit.size_reference.form, edit.form)
        )
        scale = torch.where(actual_norm > 0, target_norm / torch.where(actual_norm > 0, actual_norm, 1), 1)[
            :, None, None
        ]
    return tuple(
        replace(term, left=(scale * term.left).detach().clone(), right=term.right.detach().clone())
        for term in edit.form
    )


def edited_heads(model: RunnableModel) -> list[Heads]:
    """The heads of every layer that is changed."""
    return [model.view.layer_heads[layer] for layer in select_predicting_heads(model.view, None)]


def shares_weights(model: RunnableModel, heads: Heads) -> bool:
    """Whether all that M is made of lies where the weights lie, and so is trained with them."""
    weight_pointers = {p.untyped_storage().data_ptr() for p in model.network.parameters()}
    gains = [norm.gain for norm in (heads.norm, heads.q_norm, heads.k_norm) if norm is not None]
    M_tensors = (heads.W_Q, heads.W_K, *(gain for gain in gains if gain is not None))
    return {tensor.untyped_storage().data_ptr() for tensor in M_tensors} <= weight_pointers


def symmetrising_change(heads: Heads) -> Callable[[], Form]:
    """½(M + Mᵀ) − M of the weights as they are: a step goes along the gradient, and then back to where M is symmetric."""

    @torch.no_grad()
    def change() -> Form:
        current_form = heads_form(heads)
        return subtract_forms(RELEVANCE["symmetric"].build(heads, current_form, 0), current_form)

    return change


def make_score_edit(
    heads: Heads, mean: Float[Tensor, " d"], get_form: Callable[[], Form]
) -> Callable[..., tuple[Tensor, None]]:
    """An edit of a layer: scores with those of a form between x̂ − x̄ added to them."""

    def edit(x: Tensor, q: Tensor, k: Tensor, v: Tensor, mechanism: Mechanism, out: Tensor) -> tuple[Tensor, None]:
        x_hat = heads.norm.normalise(at_least_float32(x))
        k, v = repeat_kv_heads(k, q.shape[1]), repeat_kv_heads(v, q.shape[1])
        mechanism, q, k = with_dot_columns(mechanism, q, k, query_key_columns(heads, get_form(), x_hat - mean, x_hat))
        return mechanism.attend(q, k, v.to(q.dtype)).to(out.dtype), None

    return edit


def train_arm(
    model: RunnableModel,
    edits: LayerEdits,
    train_windows: Windows,
    held_out_windows: Windows,
    settings: HealingSettings,
    on_measurement: Callable[[int, float], object],
) -> dict[str, list[Any]]:
    """One arm: tokens seen and held-out losses; the weights are as before at the end."""
    weights = [p for p in model.network.parameters() if p.is_floating_point()]
    initial_values, requires_grad = [p.detach().clone() for p in weights], [p.requires_grad for p in weights]
    model.network.requires_grad_(True)  # a model that is only looked at may be frozen
    reset_accumulate_grad(weights)  # the View, which is made of them, holds them to the default stream
    on_gpu = model.device.type == "cuda"
    optimiser = torch.optim.AdamW(weights, settings.rate, (0.9, 0.95), weight_decay=0.0, capturable=on_gpu)
    # Columns beside a QK-norm take its scale from the View, whose gradients are gathered where no recording may wait.
    has_qk_norm = bool(edits) and any(heads.q_norm is not None for heads in edited_heads(model))
    train_recorder, eval_recorder = Recorder(on_gpu and not has_qk_norm), Recorder(on_gpu)

    @torch.enable_grad()
    def train_step(batch: Windows) -> Tensor:
        loss = next_token_losses(model.run_batch(batch, edits), batch).mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(weights, 1.0)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        return loss.detach()

    measurements: dict[str, list[Any]] = {"tokens": [], "loss": []}
    try:
        for step in range(settings.steps + 1):
            if step in settings.evaluation_steps():
                measurements["tokens"].append(step * settings.batch * settings.length)
                measurements["loss"].append(
                    held_out_loss(model, edits, held_out_windows, settings.batch, eval_recorder)
                )
                on_measurement(int(measurements["tokens"][-1]), measurements["loss"][-1])
            if step < settings.steps:
                train_recorder(train_step, sample_batch(train_windows, settings, step).to(model.device))
    finally:
        with torch.no_grad():
            for parameter, initial_value, required_grad in zip(weights, initial_values, requires_grad, strict=True):
                parameter.copy_(initial_value)
                parameter.requires_grad_(required_grad)
    return measurements


@torch.no_grad()
def held_out_loss(
    model: RunnableModel, edits: LayerEdits, held_out_windows: Windows, batch_size: int, recorder: Recorder
) -> float:
    """Nats a token on all held-out windows."""

    def nats(windows: Windows) -> Tensor:
        return next_token_losses(model.run_batch(windows, edits), windows).double().sum()

    total = sum(recorder(nats, windows) for windows in held_out_windows.split(batch_size))
    return float(total) / (held_out_windows.numel() - len(held_out_windows))


def save_arm(out: Path, arm: str, content: dict[str, Any]) -> None:
    """One file an arm, renamed into place."""
    out.mkdir(parents=True, exist_ok=True)
    write_file(out / f"{arm}.json", lambda file: file.write_text(json.dumps(content) + "\n"))


def is_arm_done(out: Path, arm: str, settings: dict[str, Any]) -> bool:
    """Whether an arm is there; one that was trained otherwise is refused."""
    file = out / f"{arm}.json"
    if not file.is_file():
        return False
    stored = json.loads(file.read_text())["settings"]
    for name, value in settings.items():
        if stored.get(name) != value:
            raise RheoscopeError(
                f"{file} was made with {name}={stored.get(name)}, now {name}={value}; type another --out"
            )
    return True


def read_healing(out: Path) -> "xarray.Dataset":
    """What the arms in a folder came to."""
    content_by_arm = {
        arm: json.loads((out / f"{arm}.json").read_text()) for arm in ARMS if (out / f"{arm}.json").is_file()
    }
    if UNTOUCHED not in content_by_arm:
        raise RheoscopeError(f"{out} holds no healing; type rheoscope heal --data FILE --out {out}")
    tokens, baseline_loss = content_by_arm[UNTOUCHED]["tokens"], content_by_arm[UNTOUCHED]["loss"]
    loss = [row["loss"] for row in content_by_arm.values()]
    values = {
        "loss": loss,
        "tokens_to_heal": [tokens_until_recovery(tokens, row, [baseline_loss[0]] * len(baseline_loss)) for row in loss],
        "tokens_to_catch_up": [tokens_until_recovery(tokens, row, baseline_loss) for row in loss],
    }
    settings = {name: str(value) for name, value in content_by_arm[UNTOUCHED]["settings"].items()}
    return HEALING.label(values, {"arm": list(content_by_arm), "tokens": tokens}, settings)


def tokens_until_recovery(tokens: Sequence[float], loss: Sequence[float], reference: Sequence[float]) -> float:
    """The tokens after which a loss is back, NaN where it never was.

    >>> tokens_until_recovery([0, 10, 20], [2.0, 1.5, 1.005], [1.0, 1.0, 1.0])
    20
    """
    recovered_at: Iterator[float] = (
        n_tokens
        for n_tokens, value, reference_value in zip(tokens, loss, reference, strict=True)
        if value <= RECOVERY_FACTOR * reference_value
    )
    return next(recovered_at, float("nan"))


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
