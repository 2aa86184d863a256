"""Advice in a shell: what an error says to type can be typed."""

import pytest

from rheoscope.report.shell_advice import as_cli_advice


@pytest.mark.parametrize(
    ("python", "shell"),
    [
        ("type draws=200, least=8", "type --draws 200 --least 8"),
        ("type nearest=3, draws=20, or a longer text", "type --nearest 3 --draws 20, or a longer text"),
        ("type heads=[(5, 1)], or heads=model.view.head_indices(5)", "type --heads 5.1, or --heads L5"),
        ("type heads=[(5, 1), (5, 2)]", "type --heads 5.1,5.2"),
        ("type shares=(0, 0.5, 1), draws=3", "type --shares 0,0.5,1 --draws 3"),
        ("type M='symmetric' or F='symmetric'", "type --M symmetric or --F symmetric"),
        ("type M='rank 8'", "type --M 'rank 8'"),
        ('type prefixes=["Once upon a time"]', 'type --prefixes "Once upon a time"'),
        ("type keep_massive=True", "type --keep-massive"),
        ("type draws=2, or draws=0 for no null", "type --draws 2, or --draws 0 for no null"),
        ("type control=rs.load(…, untrained=True).trace(text)", "type --untrained"),
        ("type rs.trajectory(trace) for how far it moves", "type rheoscope analyse trajectory for how far it moves"),
        ("type clusters=rs.clusters(trace)", "in Python type clusters=rs.clusters(trace)"),
        ("type trace.scores(layer, head)", "in Python type trace.scores(layer, head)"),
        ("type --set rate=0.001", "type --set rate=0.001"),
        ("type a longer text", "type a longer text"),
        ("type pip install 'transformers>=5'", "type pip install 'transformers>=5'"),
    ],
)
def test_settings_become_options(python: str, shell: str) -> None:
    assert as_cli_advice(f"got x=1; {python}") == f"got x=1; {shell}"


def test_options_of_another_command_stand_behind_its_name() -> None:
    told = as_cli_advice("got least=5; type least=2", "rheoscope analyse density_clusters")
    assert told == "got least=5; type rheoscope analyse density_clusters --least 2"
    assert as_cli_advice("so; type a longer text", "rheoscope analyse a") == "so; type a longer text"
    assert as_cli_advice("no advice at all", "rheoscope analyse a") == "no advice at all"
