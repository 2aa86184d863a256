"""`rheoscope costs`: FLOPs and bytes of a model, and where attention dominates."""

from typing import Annotated

import typer

from rheoscope.commands.options import Json, ModelName


def costs(
    model: ModelName = None,
    tokens: Annotated[int, typer.Option(min=1, max=1_000_000, help="Length of the sequence.")] = 2048,
    json: Json = None,
) -> None:
    """Count the FLOPs and bytes of a model.

    It also reports the sequence length beyond which attention costs more than everything else.

    Examples:  rheoscope costs    ·    rheoscope costs --model gpt2 --tokens 1024    ·    rheoscope costs --json costs.json
    """
    from rheoscope.files import check_outputs
    from rheoscope.report.cost_table import show_costs
    from rheoscope.report.progress_bars import load_model

    check_outputs([] if json is None else [json])
    show_costs(load_model(model, None, None), tokens, json)
