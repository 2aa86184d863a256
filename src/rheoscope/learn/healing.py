"""Fine-tune a pretrained model after every M was made symmetric, and measure how soon its loss recovers.

    untouched                the model as it is, fine-tuned
    symmetric                M → ½(M + Mᵀ) everywhere at step 0, then free
    symmetric_kept           the same at every step: M stays symmetric during fine-tuning
    size, cloud, spectrum    random changes of the same size in E, of the same size on the text, of the same spectrum

**How a change is represented** ½(M + Mᵀ) of a form of rank r has rank up to 2r, so the weights of the model cannot
hold it. The change ΔM is kept separately, as additional columns of queries and keys that are computed from x̂ − x̄
through its factors. This is exact at step 0 for every family (rotary, grouped heads, QK-norm), and all weights stay
trainable.

Training can undo a fixed ΔM. `symmetric_kept` recomputes it from the weights before every step (projected gradient
descent). x̄ is the mean of x̂ over one batch of the untouched model and stays fixed. A mean over each text would
leak information about later tokens.
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
from rheoscope.messages.advice import Advice, use
from rheoscope.messages.message import Message
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
"""Called after every measurement with the arm, the number of tokens seen and the held-out loss."""
UNTOUCHED, SYMMETRIC, SYMMETRIC_KEPT = "untouched", "symmetric", "symmetric_kept"
ARMS = (UNTOUCHED, SYMMETRIC, SYMMETRIC_KEPT, *CONTROLS)
RECOVERY_FACTOR = 1.01
"""A loss has recovered if it is at most this multiple of the untouched model's loss."""


@dataclass(frozen=True)
class HealingSettings:
    """Settings of the fine-tuning.

    AdamW at a constant rate without weight decay, `batch` windows of `length` tokens per step, measured on
    `held_out` windows.
    """

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
                    Message("{setting} is too small, got {value}", setting=name, value=value),
                    use(**{name: getattr(HealingSettings, name)}),
                )

    def evaluation_steps(self) -> list[int]:
        """The steps at which the loss is measured: 0, every `every` steps, and the last."""
        return sorted({*range(0, self.steps, self.every), self.steps})


def heal(
    model: RunnableModel,
    ids: Int[Tensor, " all"],
    out: Path,
    settings: HealingSettings | None = None,
    arms: Sequence[str] = ARMS,
    on_measurement: OnMeasurement | None = None,
) -> "xarray.Dataset":
    """Fine-tune after making every M symmetric, and compare with random changes and with no change.

    **Question** Does the model need separate coordinate systems for queries and keys, or can fine-tuning compensate
    for a symmetric M?

    **Returns** (arm, tokens): `loss` on held-out windows. (arm): `tokens_to_heal`, the tokens until the loss is
    within 1 % of the untouched model's initial loss. (arm): `tokens_to_catch_up`, the tokens until it is within 1 %
    of the untouched model after the same number of tokens. NaN if it never is.

    **Laws** All arms start from the same weights and see the same batches in the same order. The change at step 0
    equals that of `surgery` with this x̄. Each arm is one file in `out`, written atomically, and a finished arm is
    not trained again. The model's weights are restored at the end.

    **See also** `surgery` measures the loss directly after a change.
    """
    settings, on_measurement = settings or HealingSettings(), on_measurement or (lambda *_: None)
    model = model.without_check()  # its weights are trained and restored here
    unknown_arms = [arm for arm in arms if arm not in ARMS]
    if unknown_arms:
        raise RheoscopeError(
            Message("unknown arm {arm!r}, expected some of {arms}", arm=unknown_arms[0], arms=", ".join(ARMS)),
            use(arms=[SYMMETRIC]),
        )
    if SYMMETRIC_KEPT in arms and not all(shares_weights(model, heads) for heads in edited_heads(model)):
        other_arms = [arm for arm in arms if arm not in (UNTOUCHED, SYMMETRIC_KEPT)]
        raise RheoscopeError(
            Message(
                "{arm} needs an M that shares memory with the weights, but this model's M is a copy (half precision, or "
                "gains of 1 + w)",
                arm=SYMMETRIC_KEPT,
            ),
            use(arms=other_arms or [SYMMETRIC]),
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
    """The windows for training, and the last `held_out` ones for measuring."""
    windows = ids[: len(ids) // settings.length * settings.length].view(-1, settings.length)
    if len(windows) < settings.held_out + settings.batch:
        raise RheoscopeError(
            Message(
                "the data has {windows} windows of {length} tokens, expected at least {held_out} held-out windows and a "
                "batch of {batch}; add data or lower held_out or length",
                windows=len(windows),
                length=settings.length,
                held_out=settings.held_out,
                batch=settings.batch,
            )
        )
    return windows[: -settings.held_out], windows[-settings.held_out :]


def sample_batch(train_windows: Windows, settings: HealingSettings, step: int) -> Windows:
    """The windows of a step, the same for every arm."""
    generator = Generator().manual_seed(settings.seed * 1_000_003 + step)
    return train_windows[torch.randint(len(train_windows), (settings.batch,), generator=generator)]


def make_arm_edits(model: RunnableModel, arm: str, first_batch: Windows, seed: int) -> LayerEdits:
    """The edits of all layers in an arm."""
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
    """The current change of a form, in tensors of its own.

    The weights that it was computed from are about to be trained.
    """
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
    """The heads of every edited layer."""
    return [model.view.layer_heads[layer] for layer in select_predicting_heads(model.view, None)]


def shares_weights(model: RunnableModel, heads: Heads) -> bool:
    """Whether every tensor that M is made of shares memory with the model's weights, and is thus trained with them."""
    weight_pointers = {p.untyped_storage().data_ptr() for p in model.network.parameters()}
    gains = [norm.gain for norm in (heads.norm, heads.q_norm, heads.k_norm) if norm is not None]
    M_tensors = (heads.W_Q, heads.W_K, *(gain for gain in gains if gain is not None))
    return {tensor.untyped_storage().data_ptr() for tensor in M_tensors} <= weight_pointers


def symmetrising_change(heads: Heads) -> Callable[[], Form]:
    """A function that returns ½(M + Mᵀ) − M for the current weights: the projection onto symmetric M."""

    @torch.no_grad()
    def change() -> Form:
        current_form = heads_form(heads)
        return subtract_forms(RELEVANCE["symmetric"].build(heads, current_form, 0), current_form)

    return change


def make_score_edit(
    heads: Heads, mean: Float[Tensor, " d"], get_form: Callable[[], Form]
) -> Callable[..., tuple[Tensor, None]]:
    """An edit of a layer that adds to the scores those of a form between the rows of x̂ − x̄."""

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
    """Train one arm and return the tokens seen and the held-out losses. The weights are restored afterwards."""
    weights = [p for p in model.network.parameters() if p.is_floating_point()]
    initial_values, requires_grad = [p.detach().clone() for p in weights], [p.requires_grad for p in weights]
    model.network.requires_grad_(True)  # a model opened for analysis may be frozen
    reset_accumulate_grad(weights)  # the View refers to the weights, which ties them to the default stream
    on_gpu = model.device.type == "cuda"
    optimiser = torch.optim.AdamW(weights, settings.rate, (0.9, 0.95), weight_decay=0.0, capturable=on_gpu)
    # With QK-norm the added columns take their scale from the View, and its gradients cannot be recorded.
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
    """The loss on all held-out windows, in nats per token."""

    def nats(windows: Windows) -> Tensor:
        return next_token_losses(model.run_batch(windows, edits), windows).double().sum()

    total = sum(recorder(nats, windows) for windows in held_out_windows.split(batch_size))
    return float(total) / (held_out_windows.numel() - len(held_out_windows))


def save_arm(out: Path, arm: str, content: dict[str, Any]) -> None:
    """Write the results of an arm atomically."""
    out.mkdir(parents=True, exist_ok=True)
    write_file(out / f"{arm}.json", lambda file: file.write_text(json.dumps(content) + "\n"))


def is_arm_done(out: Path, arm: str, settings: dict[str, Any]) -> bool:
    """Whether an arm is finished. An arm that was trained with other settings is refused."""
    file = out / f"{arm}.json"
    if not file.is_file():
        return False
    stored = json.loads(file.read_text())["settings"]
    for name, value in settings.items():
        if stored.get(name) != value:
            raise RheoscopeError(
                Message(
                    "{file} was made with {setting}={stored}, now {setting}={value}; choose another folder",
                    file=str(file),
                    setting=name,
                    stored=stored.get(name),
                    value=value,
                )
            )
    return True


def read_healing(out: Path) -> "xarray.Dataset":
    """The results of all arms in a folder."""
    content_by_arm = {
        arm: json.loads((out / f"{arm}.json").read_text()) for arm in ARMS if (out / f"{arm}.json").is_file()
    }
    if UNTOUCHED not in content_by_arm:
        raise RheoscopeError(
            Message("{folder} has no results of heal", folder=str(out)),
            Advice("heal(model, ids, out)", f"rheoscope heal --data FILE --out {out}"),
        )
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
    """The number of tokens after which a loss has recovered, NaN if it never has.

    >>> tokens_until_recovery([0.0, 10.0, 20.0], [2.0, 1.5, 1.005], [1.0, 1.0, 1.0])
    20.0
    """
    recovered_at: Iterator[float] = (
        n_tokens
        for n_tokens, value, reference_value in zip(tokens, loss, reference, strict=True)
        if value <= RECOVERY_FACTOR * reference_value
    )
    return next(recovered_at, float("nan"))


HEALING = Analysis(
    "healing",
    "How soon does the loss recover after every M was made symmetric?",
    heal,
    "model",
    {
        "loss": Field(("arm", "tokens"), "Held-out loss after fine-tuning on this number of tokens.", "nats"),
        "tokens_to_heal": Field(
            ("arm",), "Tokens until the loss is within 1 % of the untouched model's initial loss.", "tokens"
        ),
        "tokens_to_catch_up": Field(
            ("arm",), "Tokens until the loss is within 1 % of the untouched model's after the same tokens.", "tokens"
        ),
    },
)
