"""An edit on the page equals `rs.surgery`'s replacement and changes nothing else."""

from dataclasses import replace

import pytest
import torch

import rheoscope as rs
from rheoscope.covers.ablation import mean_ablation, mean_outputs
from rheoscope.shapes import RheoscopeError
from rheoscope.space.trace import Trace
from rheoscope.studio.edited_model import with_edits
from rheoscope.studio.edits import OPERATIONS, Edit
from tests.pretrained.cases import double
from tests.pretrained.cases import text as ids_of_text
from tests.studio.cases import TEXT, small


def trace_with(*edits: Edit) -> Trace:
    return with_edits(small(), edits).trace(TEXT)


@pytest.mark.parametrize(
    ("edit", "replacements"),
    [
        (Edit(1, 2, "symmetric"), {"M": "symmetric"}),
        (Edit(1, 2, "skew"), {"M": "skew"}),
        (Edit(1, 2, "rank", value=2), {"M": "rank 2"}),
        (Edit(1, 2, "offset0"), {"M": "at_zero"}),
        (Edit(1, 2, "symmetric", "F"), {"F": "symmetric"}),
        (Edit(1, 2, "rank", "both", 2), {"M": "rank 2", "F": "rank 2"}),
    ],
)
def test_an_edit_equals_trace_under(edit: Edit, replacements: dict[str, str]) -> None:
    expected = rs.trace_under(small(), TEXT, heads=[(1, 2)], **replacements)  # type: ignore[arg-type]
    torch.testing.assert_close(trace_with(edit).points, expected.points, atol=1e-7, rtol=1e-6)


def test_edits_of_several_heads_stack() -> None:
    heads = [(0, 1), (1, 0), (1, 3)]
    expected = rs.trace_under(small(), TEXT, heads=heads, M="symmetric")
    edited = trace_with(*(Edit(*layer_head, "symmetric") for layer_head in heads))
    torch.testing.assert_close(edited.points, expected.points, atol=1e-5, rtol=1e-5)


def test_edits_of_one_head_compose() -> None:
    once = trace_with(Edit(1, 2, "scale", value=0.25))
    twice = trace_with(Edit(1, 2, "scale", value=0.5), Edit(1, 2, "scale", value=0.5))
    torch.testing.assert_close(once.points, twice.points, atol=1e-5, rtol=1e-5)
    assert not torch.equal(once.points, small().trace(TEXT).points)


def test_scaling_by_one_changes_no_bit() -> None:
    assert torch.equal(trace_with(Edit(1, 2, "scale", "M", 1.0)).points, small().trace(TEXT).points)


def test_an_ablated_head_returns_its_mean() -> None:
    trace = small().trace(TEXT)
    means = mean_outputs(trace, torch.ones(len(trace), dtype=torch.bool))
    expected = small().trace(TEXT, edit=mean_ablation(means, {1: [2]}))
    torch.testing.assert_close(trace_with(Edit(1, 2, "ablate")).points, expected.points)
    both = trace_with(Edit(1, 2, "scale", value=3.0), Edit(1, 2, "ablate"))
    torch.testing.assert_close(both.points, expected.points)


FAMILIES = ["gpt2", "llama", "llama_yarn", "qwen3", "neox", "gemma3", "bert"]
SEVERAL_EDITS = (Edit(1, 2, "symmetric"), Edit(1, 0, "skew"), Edit(1, 1, "rank", "F", 2), Edit(0, 3, "offset0"))


@pytest.mark.parametrize("name", FAMILIES)
def test_edited_operators_reproduce_the_edited_model_in_every_family(name: str) -> None:
    """The families cover grouped keys, QK norms, rotary positions and norms after attention."""
    model, ids = double(name), ids_of_text()
    edited = with_edits(model, SEVERAL_EDITS).trace(ids)
    assert float((edited.points - model.trace(ids).points).abs().max()) > 1e-2
    for layer in (0, 1):
        x, update = edited.layer_input(layer), edited.displacements(layer).sum(0) + edited.bias(layer)
        torch.testing.assert_close(x + update, edited.points[edited.mid_steps[layer]], atol=5e-6, rtol=1e-5)


def test_an_edit_equals_trace_under_with_query_and_output_norms() -> None:
    for name, layer_head, replacement in (
        ("qwen3", (1, 2), {"M": "symmetric"}),
        ("gemma3", (2, 1), {"F": "symmetric"}),
    ):
        model, (part, operation) = double(name), *replacement.items()
        edited = with_edits(model, [Edit(*layer_head, operation, part)]).trace(ids_of_text())  # type: ignore[arg-type]
        expected = rs.trace_under(model, ids_of_text(), heads=[layer_head], **replacement)
        torch.testing.assert_close(edited.points, expected.points, atol=5e-6, rtol=1e-5)


def test_an_edited_layer_with_a_norm_after_attention_has_no_derivative() -> None:
    model = with_edits(double("gemma3"), [Edit(2, 1, "symmetric", "F")])
    trace = model.trace(ids_of_text())
    assert rs.trajectory(trace).head_speed.notnull().all()
    with pytest.raises(RheoscopeError, match="there is no derivative through this layer"):
        rs.rollout(model, trace)


def test_scaling_M_adds_the_centred_form_to_the_scores() -> None:
    trace = with_edits(small(), [Edit(1, 2, "scale", value=2.0)]).trace(TEXT)
    scores, unedited_scores = trace.scores(1, 2), small().trace(TEXT).scores(1, 2)
    hat = trace.view.layer_heads[1].norm.normalise(trace.layer_input(1))
    centred, M = hat - hat.mean(0), small().view.head(1, 2).M
    offsets = {i - j for i in range(len(trace)) for j in range(len(trace))}
    forms = {offset: M(offset).bilinear_form(centred, centred).detach() for offset in offsets}
    dense = torch.tensor([[float(forms[i - j][i, j]) for j in range(len(trace))] for i in range(len(trace))])
    torch.testing.assert_close(scores - unedited_scores, dense, atol=1e-4, rtol=1e-3)
    assert float(dense.abs().max()) > 1e-3


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_edited_operators_are_the_replacements(name: str) -> None:
    model = double(name)
    trace = with_edits(model, [Edit(1, 2, "symmetric", "both"), Edit(1, 0, "skew")]).trace(ids_of_text())
    (M, F), (old_M, old_F) = ((head.M, head.F) for head in (view.head(1, 2) for view in (trace.view, model.view)))
    skew, old_skew = (view.head(1, 0).M for view in (trace.view, model.view))
    for offset in (0, 3):
        dense, dense_skew = old_M(offset).dense(), old_skew(offset).dense()
        torch.testing.assert_close(M(offset).dense(), (dense + dense.mT) / 2)
        torch.testing.assert_close(skew(offset).dense(), (dense_skew - dense_skew.mT) / 2)
    norm = model.view.layer_heads[1].norm
    torch.testing.assert_close(
        norm.centre(F.dense().mT), norm.centre(old_F.symmetric_part().dense().mT)
    )  # x̂ is centred
    torch.testing.assert_close(trace.view.head(1, 3).M(3).dense(), model.view.head(1, 3).M(3).dense())


INVALID_EDITS = [
    Edit(9, 0, "symmetric"),
    Edit(0, 9, "symmetric"),
    Edit(-1, 0, "symmetric"),
    Edit(0, 0, "skew", "F"),
    Edit(0, 0, "offset0", "both"),
    Edit(0, 0, "rank"),
    Edit(0, 0, "rank", value=0),
    Edit(0, 0, "rank", value=99),
    Edit(0, 0, "scale"),
    Edit(0, 0, "scale", value=float("nan")),
    Edit(0, 0, "scale", value=1e9),
    Edit(0, 0, "symmetric", value=1.0),
]


@pytest.mark.parametrize("edit", INVALID_EDITS, ids=str)
def test_an_invalid_edit_is_refused_in_one_line(edit: Edit) -> None:
    with pytest.raises(RheoscopeError) as error:
        trace_with(edit)
    assert "\n" not in str(error.value)


def test_a_rank_after_another_edit_is_refused() -> None:
    with pytest.raises(RheoscopeError, match="must come before the other edits"):
        trace_with(Edit(0, 0, "symmetric"), Edit(0, 0, "rank", value=2))


def test_every_operation_that_the_page_offers_runs() -> None:
    points = small().trace(TEXT).points
    for row in OPERATIONS:
        value = {None: None, "rank": 1.0, "factor": 2.0}[row["takes"]]
        for part in row["parts"]:
            edited_points = trace_with(replace(Edit(1, 1, row["name"]), part=part, value=value)).points
            assert torch.equal(
                edited_points[: small().trace(TEXT).input_steps[1]], points[: small().trace(TEXT).input_steps[1]]
            )
            assert edited_points.isfinite().all()


# The edited model as a model

TWO_EDITS = (Edit(1, 2, "symmetric", "both"), Edit(0, 1, "ablate"))


def test_a_text_in_a_batch_equals_the_text_alone() -> None:
    """Each text is centred on its own mean, regardless of the batch and its padding."""
    model, texts = with_edits(small(), TWO_EDITS), [TEXT, "The keys", TEXT + " The king"]
    for trace, text in zip(model.trace(texts), texts, strict=True):
        torch.testing.assert_close(
            trace.points, with_edits(small(), TWO_EDITS).trace(text).points, atol=1e-5, rtol=1e-5
        )


def test_logits_come_from_the_last_point() -> None:
    model = with_edits(small(), TWO_EDITS)
    logits, ids = model.run(TEXT), small().ids(TEXT)
    view = small().view
    torch.testing.assert_close(
        logits, view.final_norm.apply(model.trace(TEXT).points[-1]) @ view.unembed, atol=1e-4, rtol=1e-4
    )
    assert not torch.allclose(logits, small().run(TEXT))
    torch.testing.assert_close(
        model.run_batch(ids[None], block_outputs=model.block_outputs(ids[None])[:1])[0], logits, atol=1e-5, rtol=1e-5
    )


def test_gradients_of_the_edited_model_match_differences() -> None:
    """The gradients are compared with central differences."""
    model = with_edits(small(), TWO_EDITS)
    _, gradients = model.gradients(TEXT, lambda logits: logits[-1, 5])
    for step in ("embed", "L1.resid_mid"):
        direction = torch.randn(gradients[step].shape, generator=torch.Generator().manual_seed(0))
        plus, minus = (
            float(model.run(TEXT, hooks={step: lambda x, size=size: x + size * direction})[-1, 5].detach())
            for size in (3e-4, -3e-4)
        )
        assert float((gradients[step] * direction).sum()) == pytest.approx((plus - minus) / 6e-4, rel=2e-3)


def test_without_edits_the_model_is_returned() -> None:
    assert with_edits(small(), ()) is small()


def test_further_edits_see_the_edited_head() -> None:
    """An edit that recomputes the head changes nothing. An edit that returns zeros removes its update."""
    model = with_edits(double("llama"), [Edit(1, 2, "symmetric", "both")])
    logits = model.run(ids_of_text())
    recomputed = model.run(ids_of_text(), edit={(1, 2): lambda q, k, v, mechanism: mechanism.attend(q, k, v)})
    torch.testing.assert_close(recomputed, logits, atol=5e-6, rtol=1e-5)
    without_head = model.trace(ids_of_text(), edit={(1, 2): lambda q, k, v, mechanism: 0 * mechanism.attend(q, k, v)})
    trace = model.trace(ids_of_text())
    update = trace.points[trace.mid_steps[1]] - without_head.points[trace.mid_steps[1]]
    torch.testing.assert_close(update, trace.displacement(1, 2), atol=5e-6, rtol=1e-5)
