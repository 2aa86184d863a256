"""The cost of an edit equals that of `rs.surgery`, and the page can ask for it."""

import pytest

import rheoscope as rs
from rheoscope.model_comparison import prediction_changes as module
from rheoscope.studio.edit_cost import edit_cost
from rheoscope.studio.edited_model import with_edits
from rheoscope.studio.edits import Edit
from tests.pretrained.cases import double
from tests.pretrained.cases import text as ids_of_text
from tests.studio.cases import TEXT, post_text, running_studio, small

SILENCED_HEAD = {"layer": 1, "head": 2, "part": "both", "operation": "ablate"}


@pytest.mark.parametrize("max_logits", [module.MAX_LOGITS, 1])
def test_the_cost_equals_that_of_surgery(max_logits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With one block of all tokens, and with one block per token."""
    monkeypatch.setattr(module, "MAX_LOGITS", max_logits)
    text, heads = f"{TEXT} {TEXT}", [(layer, head) for layer in (0, 1, 2) for head in (0, 1, 2, 3)]
    after = with_edits(small(), [Edit(*layer_head, "rank", "F", 1) for layer_head in heads]).trace(text)
    cost = edit_cost(small().trace(text), after)
    expected = rs.surgery(small(), text, heads=heads, F="rank 1", comparisons=rs.Comparisons(("mean",)))
    assert cost.kl > 1e-5
    assert cost.kl == pytest.approx(float(expected.kl[0]), rel=1e-2)
    assert cost.loss_before == pytest.approx(float(expected.loss_before[0]), rel=1e-5)
    assert cost.loss_after == pytest.approx(float(expected.loss_after[0]), rel=1e-5)


def test_a_masked_language_model_has_no_loss() -> None:
    model, ids = double("bert"), ids_of_text()
    cost = edit_cost(model.trace(ids), with_edits(model, [Edit(1, 2, "ablate")]).trace(ids))
    assert (cost.loss_before, cost.loss_after) == (None, None)
    assert cost.kl > 0


def test_the_server_reports_the_cost() -> None:
    with running_studio() as (_, client):
        cost = client.get(f"/api/traces/{post_text(client, edits=[SILENCED_HEAD])}/cost").json()
        unchanged = client.get(f"/api/traces/{post_text(client)}/cost").json()
    after = with_edits(small(), [Edit(1, 2, "ablate", "both")]).trace(TEXT)
    assert cost == pytest.approx(vars(edit_cost(small().trace(TEXT), after)))
    assert unchanged["kl"] == pytest.approx(0, abs=1e-6)
    assert unchanged["loss_before"] == unchanged["loss_after"] == pytest.approx(cost["loss_before"])
