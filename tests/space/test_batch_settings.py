"""The batch kernel of an analysis refuses a setting that it does not have, in one line."""

import pytest

from rheoscope.catalogue import analysis_by_name
from rheoscope.shapes import RheoscopeError
from tests.pictures.cases import TEXT, model


def test_a_setting_that_the_batch_kernel_does_not_have_is_refused() -> None:
    batch = analysis_by_name("distortion").batch
    assert batch is not None
    traces = model().trace([TEXT, TEXT])
    with pytest.raises(
        RheoscopeError, match="has no setting 'draws'; expected one of n_neighbours, keep_massive; type"
    ):
        batch(traces, draws=4)
    assert batch(traces, n_neighbours=3)["rsa"].shape[0] == 2
