"""An edit on the page is what the library's own surgery makes, and changes nothing else."""

from dataclasses import replace

import pytest
import torch

import rheoscope as rs
from rheoscope.covers.ablation import mean_ablation, mean_outputs
from rheoscope.shapes import RheoscopeError
from rheoscope.space.trace import Trace
from rheoscope.studio.edited import Edited, trace_of, under
from rheoscope.studio.edits import OPERATIONS, Edit, live, map_of
from tests.studio.cases import TEXT, small


def after(*edits: Edit) -> Trace:
    return under(small(), edits).trace(TEXT)


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
    torch.testing.assert_close(after(edit).points, twin.points, atol=0, rtol=0)


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


@pytest.mark.parametrize(
    "edits",
    [(), (Edit(1, 2, "symmetric"),), (Edit(1, 2, "scale", value=3.0), Edit(1, 0, "skew")), (Edit(0, 2, "symmetric"),)],
)
def test_weights_under_an_edit_move_the_tokens_to_where_the_edited_model_has_them(edits: tuple[Edit, ...]) -> None:
    trace, kept = trace_of(under(small(), edits), TEXT)
    heads, x = trace.view.blocks[1], trace.read_by(1)
    values = heads.read(x)[2][0]
    moved = sum(
        map_of(trace, kept, edits, 1, head, "weights") @ values[heads.group(head)] @ heads.W_O[head]
        for head in range(heads.count)
    )
    wanted = trace.points[trace.middle[1]] - x
    torch.testing.assert_close(moved + heads.bias(x), wanted, atol=1e-5, rtol=1e-4)


def test_scores_under_an_edit_are_times_as_large() -> None:
    edits = (Edit(1, 2, "scale", value=2.0),)
    trace, kept = trace_of(under(small(), edits), TEXT)
    own, found = trace.scores(1, 2), map_of(trace, kept, edits, 1, 2, "scores")
    hat = trace.view.blocks[1].norm.hat(trace.read_by(1))
    centred, M = hat - hat.mean(0), trace.view.head(1, 2).M
    offsets = {i - j for i in range(len(trace)) for j in range(len(trace))}
    forms = {offset: M(offset).form(centred, centred).detach() for offset in offsets}
    dense = torch.tensor([[float(forms[i - j][i, j]) for j in range(len(trace))] for i in range(len(trace))])
    torch.testing.assert_close(found - own, dense, atol=1e-4, rtol=1e-3)
    assert float(dense.abs().max()) > 1e-3


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
            assert torch.equal(found[: small().trace(TEXT).where[1]], before[: small().trace(TEXT).where[1]])
            assert found.isfinite().all()


# The model under edits, as a model

STACKED = (Edit(1, 2, "symmetric", "both"), Edit(0, 1, "ablate"))


def test_a_batch_runs_as_its_texts_alone() -> None:
    """Each is centred by its own mean, whatever stands beside it and however it is padded."""
    model, texts = under(small(), STACKED), [TEXT, "The keys", TEXT + " The king"]
    for found, text in zip(model.trace(texts), texts, strict=True):
        torch.testing.assert_close(found.points, under(small(), STACKED).trace(text).points, atol=1e-5, rtol=1e-5)


def test_logits_are_those_of_the_points() -> None:
    model = under(small(), STACKED)
    logits, ids = model.run(TEXT), small().ids(TEXT)
    view = small().view
    torch.testing.assert_close(
        logits, view.final_norm.own(model.trace(TEXT).points[-1]) @ view.unembed, atol=1e-4, rtol=1e-4
    )
    assert not torch.allclose(logits, small().run(TEXT))
    torch.testing.assert_close(
        model.run_batch(ids[None], given=model.passed(ids[None])[:1])[0], logits, atol=1e-5, rtol=1e-5
    )


def test_gradients_are_those_of_the_edited_model() -> None:
    """Against a small step of the points, in the model that is edited by its own means."""
    model, ids = under(small(), STACKED), small().ids(TEXT)
    assert isinstance(model, Edited)
    edit = live(small().view, [model.before(ids)], STACKED)
    _, found = model.gradients(TEXT, lambda logits: logits[-1, 5])
    for step in ("embed", "L1.resid_mid"):
        along = torch.randn(found[step].shape, generator=torch.Generator().manual_seed(0))
        ahead, back = (
            float(small().run(TEXT, edit=edit, hooks={step: lambda x, by=by: x + by * along})[-1, 5].detach())
            for by in (3e-4, -3e-4)
        )
        assert float((found[step] * along).sum()) == pytest.approx((ahead - back) / 6e-4, rel=2e-3)


def test_no_edit_is_the_model_itself_and_further_changes_are_refused() -> None:
    assert under(small(), ()) is small()
    for more in ({"edit": {(0, 0): lambda q, k, v, mechanism: v}}, {"hooks": {"embed": lambda x: x}}):
        with pytest.raises(RheoscopeError, match="where an edit stands already"):
            under(small(), STACKED).run(TEXT, **more)  # type: ignore[arg-type]
