"""An edit on the page is what the library's own surgery makes, and changes nothing else."""

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


def after(*edits: Edit) -> Trace:
    return with_edits(small(), edits).trace(TEXT)


@pytest.mark.parametrize(
    ("edit", "under"),
    [
        (Edit(1, 2, "symmetric"), {"M": "symmetric"}),
        (Edit(1, 2, "skew"), {"M": "skew"}),
        (Edit(1, 2, "rank", value=2), {"M": "rank 2"}),
        (Edit(1, 2, "offset0"), {"M": "at_zero"}),
        (Edit(1, 2, "symmetric", "F"), {"F": "symmetric"}),
        (Edit(1, 2, "rank", "both", 2), {"M": "rank 2", "F": "rank 2"}),
    ],
)
def test_an_edit_is_what_trace_under_gives(edit: Edit, under: dict[str, str]) -> None:
    twin = rs.trace_under(small(), TEXT, heads=[(1, 2)], **under)  # type: ignore[arg-type]
    torch.testing.assert_close(after(edit).points, twin.points, atol=1e-7, rtol=1e-6)


def test_edits_of_several_heads_stack() -> None:
    heads = [(0, 1), (1, 0), (1, 3)]
    twin = rs.trace_under(small(), TEXT, heads=heads, M="symmetric")
    found = after(*(Edit(*at, "symmetric") for at in heads))
    torch.testing.assert_close(found.points, twin.points, atol=1e-5, rtol=1e-5)


def test_edits_of_one_head_follow_each_other() -> None:
    once = after(Edit(1, 2, "scale", value=0.25))
    twice = after(Edit(1, 2, "scale", value=0.5), Edit(1, 2, "scale", value=0.5))
    torch.testing.assert_close(once.points, twice.points, atol=1e-5, rtol=1e-5)
    assert not torch.equal(once.points, small().trace(TEXT).points)


def test_times_one_changes_no_bit() -> None:
    assert torch.equal(after(Edit(1, 2, "scale", "M", 1.0)).points, small().trace(TEXT).points)


def test_a_silenced_head_gives_its_mean() -> None:
    trace = small().trace(TEXT)
    means = mean_outputs(trace, torch.ones(len(trace), dtype=torch.bool))
    twin = small().trace(TEXT, edit=mean_ablation(means, {1: [2]}))
    torch.testing.assert_close(after(Edit(1, 2, "ablate")).points, twin.points)
    both = after(Edit(1, 2, "scale", value=3.0), Edit(1, 2, "ablate"))
    torch.testing.assert_close(both.points, twin.points)


FAMILIES = ["gpt2", "llama", "llama_yarn", "qwen3", "neox", "gemma3", "bert"]
MANY = (Edit(1, 2, "symmetric"), Edit(1, 0, "skew"), Edit(1, 1, "rank", "F", 2), Edit(0, 3, "offset0"))


@pytest.mark.parametrize("name", FAMILIES)
def test_in_every_family_edited_operators_move_tokens_to_where_the_edited_model_has_them(name: str) -> None:
    """Grouped keys, norms of queries and keys, rotations that go back or stand still, norms after attention."""
    own, ids = double(name), ids_of_text()
    found = with_edits(own, MANY).trace(ids)
    assert float((found.points - own.trace(ids).points).abs().max()) > 1e-2
    for layer in (0, 1):
        x, moved = found.layer_input(layer), found.displacements(layer).sum(0) + found.bias(layer)
        torch.testing.assert_close(x + moved, found.points[found.mid_steps[layer]], atol=5e-6, rtol=1e-5)


def test_one_edit_is_what_trace_under_gives_under_a_norm_of_queries_and_after_attention() -> None:
    for name, at, how in (("qwen3", (1, 2), {"M": "symmetric"}), ("gemma3", (2, 1), {"F": "symmetric"})):
        own, (part, said) = double(name), *how.items()
        found = with_edits(own, [Edit(*at, said, part)]).trace(ids_of_text())  # type: ignore[arg-type]
        twin = rs.trace_under(own, ids_of_text(), heads=[at], **how)
        torch.testing.assert_close(found.points, twin.points, atol=5e-6, rtol=1e-5)


def test_a_layer_whose_norm_comes_after_attention_says_why_it_has_no_derivative() -> None:
    model = with_edits(double("gemma3"), [Edit(2, 1, "symmetric", "F")])
    trace = model.trace(ids_of_text())
    assert rs.trajectory(trace).head_speed.notnull().all()
    with pytest.raises(RheoscopeError, match="there is no derivative through it"):
        rs.rollout(model, trace)


def test_scores_under_an_edit_are_times_as_large() -> None:
    trace = with_edits(small(), [Edit(1, 2, "scale", value=2.0)]).trace(TEXT)
    found, own = trace.scores(1, 2), small().trace(TEXT).scores(1, 2)
    hat = trace.view.layer_heads[1].norm.normalise(trace.layer_input(1))
    centred, M = hat - hat.mean(0), small().view.head(1, 2).M
    offsets = {i - j for i in range(len(trace)) for j in range(len(trace))}
    forms = {offset: M(offset).bilinear_form(centred, centred).detach() for offset in offsets}
    dense = torch.tensor([[float(forms[i - j][i, j]) for j in range(len(trace))] for i in range(len(trace))])
    torch.testing.assert_close(found - own, dense, atol=1e-4, rtol=1e-3)
    assert float(dense.abs().max()) > 1e-3


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_edited_operators_are_the_replacements(name: str) -> None:
    own = double(name)
    trace = with_edits(own, [Edit(1, 2, "symmetric", "both"), Edit(1, 0, "skew")]).trace(ids_of_text())
    (M, F), (old_M, old_F) = ((one.M, one.F) for one in (view.head(1, 2) for view in (trace.view, own.view)))
    skew, old_skew = (view.head(1, 0).M for view in (trace.view, own.view))
    for offset in (0, 3):
        dense, turned = old_M(offset).dense(), old_skew(offset).dense()
        torch.testing.assert_close(M(offset).dense(), (dense + dense.mT) / 2)
        torch.testing.assert_close(skew(offset).dense(), (turned - turned.mT) / 2)
    norm = own.view.layer_heads[1].norm
    torch.testing.assert_close(
        norm.centre(F.dense().mT), norm.centre(old_F.symmetric_part().dense().mT)
    )  # x̂ is centred
    torch.testing.assert_close(trace.view.head(1, 3).M(3).dense(), own.view.head(1, 3).M(3).dense())


WRONG = [
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


@pytest.mark.parametrize("edit", WRONG, ids=str)
def test_other_edits_are_refused_in_one_line(edit: Edit) -> None:
    with pytest.raises(RheoscopeError) as error:
        after(edit)
    assert "\n" not in str(error.value)


def test_a_rank_after_another_edit_is_refused() -> None:
    with pytest.raises(RheoscopeError, match="before the other"):
        after(Edit(0, 0, "symmetric"), Edit(0, 0, "rank", value=2))


def test_every_operation_that_the_page_offers_runs() -> None:
    before = small().trace(TEXT).points
    for row in OPERATIONS:
        value = {None: None, "rank": 1.0, "factor": 2.0}[row["takes"]]
        for part in row["parts"]:
            found = after(replace(Edit(1, 1, row["name"]), part=part, value=value)).points
            assert torch.equal(
                found[: small().trace(TEXT).input_steps[1]], before[: small().trace(TEXT).input_steps[1]]
            )
            assert found.isfinite().all()


# The model under edits, as a model

STACKED = (Edit(1, 2, "symmetric", "both"), Edit(0, 1, "ablate"))


def test_a_batch_runs_as_its_texts_alone() -> None:
    """Each is centred by its own mean, whatever stands beside it and however it is padded."""
    model, texts = with_edits(small(), STACKED), [TEXT, "The keys", TEXT + " The king"]
    for found, text in zip(model.trace(texts), texts, strict=True):
        torch.testing.assert_close(found.points, with_edits(small(), STACKED).trace(text).points, atol=1e-5, rtol=1e-5)


def test_logits_are_those_of_the_points() -> None:
    model = with_edits(small(), STACKED)
    logits, ids = model.run(TEXT), small().ids(TEXT)
    view = small().view
    torch.testing.assert_close(
        logits, view.final_norm.apply(model.trace(TEXT).points[-1]) @ view.unembed, atol=1e-4, rtol=1e-4
    )
    assert not torch.allclose(logits, small().run(TEXT))
    torch.testing.assert_close(
        model.run_batch(ids[None], block_outputs=model.block_outputs(ids[None])[:1])[0], logits, atol=1e-5, rtol=1e-5
    )


def test_gradients_are_those_of_the_edited_model() -> None:
    """Against a small step of the points, in the model that is edited by its own means."""
    model = with_edits(small(), STACKED)
    _, found = model.gradients(TEXT, lambda logits: logits[-1, 5])
    for step in ("embed", "L1.resid_mid"):
        along = torch.randn(found[step].shape, generator=torch.Generator().manual_seed(0))
        ahead, back = (
            float(model.run(TEXT, hooks={step: lambda x, by=by: x + by * along})[-1, 5].detach())
            for by in (3e-4, -3e-4)
        )
        assert float((found[step] * along).sum()) == pytest.approx((ahead - back) / 6e-4, rel=2e-3)


def test_no_edit_is_the_model_itself() -> None:
    assert with_edits(small(), ()) is small()


def test_further_edits_see_the_edited_head() -> None:
    """One that computes a head anew, as the mechanism that it is given does, changes nothing; one that returns zeros takes it out."""
    model = with_edits(double("llama"), [Edit(1, 2, "symmetric", "both")])
    whole = model.run(ids_of_text())
    again = model.run(ids_of_text(), edit={(1, 2): lambda q, k, v, mechanism: mechanism.attend(q, k, v)})
    torch.testing.assert_close(again, whole, atol=5e-6, rtol=1e-5)
    silent = model.trace(ids_of_text(), edit={(1, 2): lambda q, k, v, mechanism: 0 * mechanism.attend(q, k, v)})
    trace = model.trace(ids_of_text())
    moved = trace.points[trace.mid_steps[1]] - silent.points[trace.mid_steps[1]]
    torch.testing.assert_close(moved, trace.displacement(1, 2), atol=5e-6, rtol=1e-5)
