"""The story of a text: its lines, what they say, when they are missing, and the commands that follow."""

import shlex
import subprocess
from dataclasses import replace
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

import rheoscope as rs
from rheoscope.covers.head_types.head_list import TYPE_NAMES
from rheoscope.models.config import Config
from rheoscope.models.transformer import Transformer
from rheoscope.picture.blocks import Commands, Story
from rheoscope.report import next_steps, progress_bars
from rheoscope.report.analysis_runs import Subject, empty_results, run_analyses
from rheoscope.report.block_html import block_html
from rheoscope.report.card_cache import find_card
from rheoscope.report.card_clouds import CardCloud
from rheoscope.report.report_plans import REPORTS
from rheoscope.report.report_settings import report_request
from rheoscope.report.run_report import OutputFiles, text_options
from rheoscope.report.story import STORY_ANALYSES, STORY_LINES, TEXT_LINES, missing_blocks, story_dataset
from rheoscope.report.story_numbers import story_numbers
from rheoscope.report.terminal import Terminal
from tests.commands.cases import run_rheoscope
from tests.pretrained.cases import model as pretrained_model
from tests.report.cases import TEXT, flow_results, model, opened_by_name, report_results, small

SHORT = "a"


def sentences(text: str = TEXT) -> dict[str, str]:
    rows = story_dataset(flow_results(text))
    return dict(zip(rows.line.values.tolist(), rows.sentence.values.tolist(), strict=True))


def test_the_story_has_its_lines_in_the_order_of_an_explanation() -> None:
    assert [line.name for line in STORY_LINES] == [
        "next_token", "written_by", "heads_at_work", "from_source", "source_path", "movement", "destination", "seen_through",
        "groups",
    ]  # fmt: skip
    assert [line.order for line in STORY_LINES] == sorted({line.order for line in STORY_LINES})


def test_a_story_never_answers_yes_or_no() -> None:
    for sentence in sentences().values():
        words = sentence.lower().replace(",", " ").replace(";", " ").split()
        assert not {"yes", "unclear", "significant", "verdict"} & set(words)
        assert words[0] != "no" or words[:3] == ["no", "two", "tokens"]


def test_the_next_token_is_that_of_the_model() -> None:
    trace = model().trace(TEXT, logits=True)
    probabilities = trace.logits[-1].float().softmax(-1)
    best = model().token_strings([int(probabilities.argmax())])[0].replace(" ", "·")
    assert sentences()["next_token"].startswith(f"{best} {100 * float(probabilities.max()):.0f} %, ")


def test_the_writers_are_the_components_with_the_largest_contributions() -> None:
    lens = flow_results().datasets["readout"]
    order = np.argsort(-np.abs(lens.attribution.values))
    first = f"{lens.component.values[order[0]]} {lens.attribution.values[order[0]]:+.1f}"
    assert sentences()["written_by"].startswith(first)
    assert f"of {float(lens.attribution.sum()):.1f} above the mean logit" in sentences()["written_by"]


def test_heads_at_work_read_their_largest_weight() -> None:
    sentence = sentences()["heads_at_work"]
    layer, head = map(int, sentence.split(" ")[0].removeprefix("L").split(".H"))
    weights = model().trace(TEXT).weights(layer, head)[-1]
    assert f" at {int(weights.argmax())} (" in sentence.split("·")[0] + sentence.split("reads")[1]
    kind = str(flow_results().datasets["head_types"].type.values[layer, head])
    assert str(TYPE_NAMES[kind]) in sentence


def test_the_destination_has_the_shares_of_transport() -> None:
    share = float(flow_results().datasets["transport"].next_type_share)
    assert sentences()["destination"].startswith(f"{100 * share:.0f} % of the tokens end where their next token is")


def test_a_card_adds_the_usual_range_of_its_passages() -> None:
    import xarray as xr

    lines, values = [line.name for line in STORY_LINES if line.number is not None], np.linspace(0, 1, 101)
    card = xr.Dataset({"story_number": (("line", "text"), [values] * len(lines))}, {"line": lines})
    rows = story_dataset(replace(flow_results(), card=card))
    assert "usual here 10 % to 90 %" in str(rows.sel(line="destination").sentence.values)
    for name in lines:
        row = rows.sel(line=name)
        assert "usual" in str(row.sentence.values)
        assert float(row.percentile) == pytest.approx(100 * (values < float(row.number)).mean())
    assert np.isnan(story_dataset(flow_results()).percentile).all()


def test_the_numbers_of_a_story_are_those_of_its_texts() -> None:
    cloud = CardCloud(model(), [TEXT, "gold gold gold gold gold gold gold gold"])
    numbers = story_numbers([cloud], [cloud.traces()])
    rows = story_dataset(flow_results()).sel(line=numbers.line)
    np.testing.assert_allclose(numbers.values[:, 0], rows.number.values, rtol=1e-5)
    assert numbers.notnull().all()


def test_the_pairs_are_those_of_the_head_that_writes_most() -> None:
    head = sentences()["heads_at_work"].split(" ")[0]
    assert sentences()["seen_through"].startswith(f"as keys of {head}, ")


def test_groups_are_clusters_of_the_last_layer() -> None:
    repeated = report_results(REPORTS["flow"], "the sea and the sea and the sea and the sea", of=small())
    sentence = str(story_dataset(repeated).sel(line="groups").sentence.values)
    count = int(repeated.datasets["clusters"].cluster_count[-1])
    assert f"; {count} clusters of {repeated.n_ordinary_tokens} tokens" in sentence


def test_a_short_text_names_the_lines_that_a_longer_one_adds() -> None:
    results = flow_results(SHORT)
    missing = [str(line.title) for line in TEXT_LINES if not line.has_result(results)]
    (block,) = missing_blocks(results)
    assert isinstance(block, Story)
    assert str(block.note) == f"A text of 8 tokens or more adds: {', '.join(missing)}."
    assert missing
    assert missing_blocks(flow_results()) == []
    shown = [line for line in TEXT_LINES if line.has_result(results)]
    assert 0 < len(shown) < len(TEXT_LINES)


@pytest.mark.parametrize("n", [1, 3, 4, 8])
def test_a_line_has_a_result_from_its_smallest_number_of_tokens_on(n: int) -> None:
    ids = small().ids(TEXT)[:n]
    results = run_analyses(Subject(small(), ids, small().trace(ids)), [report_request(name) for name in STORY_ANALYSES])
    assert results.n_ordinary_tokens == n
    for line in TEXT_LINES:
        assert line.has_result(results) is (n >= line.min_tokens), line.name
    assert len(missing_blocks(results)) == (n < 8)


@pytest.mark.parametrize("ids", [[5, 6, 5, 7, 6, 8, 5, 9, 5], [5] * 9])
def test_tokens_at_the_same_point_are_no_pairs(ids: list[int]) -> None:
    """Without positions in the embedding, equal tokens are one point of the first layer."""
    rotary = rs.load(Transformer(Config(vocabulary=12, width=16, depth=1, heads=2, position="rotary")))
    results = run_analyses(Subject(rotary, ids, rotary.trace(ids)), [report_request(name) for name in STORY_ANALYSES])
    (line,) = (line for line in STORY_LINES if line.name == "seen_through")
    expected = "reads all tokens at the same point" if len(set(ids)) == 1 else "are separated and"
    assert expected in str(line.sentence(results))


def test_a_masked_language_model_has_no_line_about_a_next_token() -> None:
    masked = pretrained_model("bert")
    ids = [5, 6, 7, 8, 9, 10, 11, 12]
    results = run_analyses(Subject(masked, ids, masked.trace(ids)), [report_request(name) for name in STORY_ANALYSES])
    assert results.has("readout")
    shown = {line.name for line in STORY_LINES if line.has_result(results)}
    assert {"movement", "groups"} <= shown
    assert not {"next_token", "written_by"} & shown


def test_massive_tokens_are_added_to_the_tokens_that_a_line_needs() -> None:
    results = flow_results(SHORT)
    trace = results.required_trace
    points = trace.points.repeat(1, 2, 1)
    points[:, 1] *= 1000
    massive = replace(trace, points=points, ids=trace.ids.repeat(2), tokens=[*trace.tokens, *trace.tokens])
    assert massive.massive_tokens() == [1]
    (block,) = missing_blocks(replace(results, trace=massive))
    assert isinstance(block, Story)
    assert str(block.note).startswith("A text of 9 tokens or more adds: ")


@pytest.mark.parametrize(
    "text", ['it\'s a "text"', "-x y", "a\tb's \\n", "\N{MAN}\u200d\N{MICROSCOPE} \x1b[1m", "$(x) `y` !z"]
)
def test_commands_contain_the_text_as_one_word(text: str) -> None:
    results = report_results(REPORTS["flow"], text, fast=True, of=small())
    (block,) = next_steps.blocks(opened_by_name(results))
    assert isinstance(block, Commands)
    assert not block.setup
    for words in pasted_words(block):
        assert words[-1] == text
        assert words[0] == "rheoscope"
    assert block.purposes


def pasted_words(block: Commands) -> list[list[str]]:
    """The words that bash passes to every command of a block that is pasted as it is printed."""
    terminal = Terminal(Console(file=StringIO(), width=80), [])
    terminal.print_commands(block)
    assert isinstance(terminal.console.file, StringIO)
    printed = terminal.console.file.getvalue()
    script = printed[printed.index(block.setup or "# ") :]
    show_words = r"""rheoscope() { printf '%s\0' rheoscope "$@"; printf '\1'; }"""
    output = subprocess.run(["bash", "-c", f"{show_words}\n{script}"], capture_output=True, check=True, text=True)
    assert not output.stderr
    return [command.split("\0")[:-1] for command in output.stdout.split("\1")[:-1]]


def test_a_model_that_no_command_can_name_is_called_in_python() -> None:
    results = report_results(REPORTS["flow"], "king", fast=True, of=small())
    (block,) = next_steps.blocks(results)
    assert isinstance(block, Commands)
    assert not block.purposes
    assert "rs.card(model)" in block.line


def test_a_text_of_several_lines_is_printed_once() -> None:
    text = "line one\nline two\tit's"
    (block,) = next_steps.blocks(opened_by_name(report_results(REPORTS["flow"], text, fast=True, of=small())))
    assert isinstance(block, Commands)
    assert [words[-1] for words in pasted_words(block)] == 3 * [text]
    assert block.setup.count("line one") == 1


@pytest.mark.parametrize("start", ["It's a long text. ", "-- "])
def test_a_long_text_is_printed_once(start: str) -> None:
    text = start + "The sea and the ship. " * 12
    (block,) = next_steps.blocks(opened_by_name(report_results(REPORTS["flow"], text, fast=True, of=small())))
    assert isinstance(block, Commands)
    assert sum(line.count("ship") for line in (block.setup, *block.purposes)) == 12
    assert [words[-1] for words in pasted_words(block)] == 3 * [text]
    page = block_html(block)
    assert page.count("the ship") == 12


def test_commands_name_the_file_of_the_text() -> None:
    results = replace(
        report_results(REPORTS["flow"], "The keys", fast=True, of=small()), text_options="--file 'a b.txt'"
    )
    (block,) = next_steps.blocks(opened_by_name(results))
    assert isinstance(block, Commands)
    assert [words[-2:] for words in pasted_words(block)] == [["--file", "a b.txt"]] * 3
    trace = results.required_trace
    files = OutputFiles(input_path=Path("a b.txt"))
    assert text_options(files, trace, "The keys") == "--file 'a b.txt'"
    assert text_options(files, trace, trace.ids) == f"--file 'a b.txt' --first {len(trace)}"
    assert text_options(OutputFiles(input_path=Path("a.wav"), input_option="--audio"), trace, "w5") == "--audio a.wav"
    assert text_options(OutputFiles(), trace, "The keys") == ""


def test_a_short_text_gets_only_commands_that_can_describe_it() -> None:
    """The report on covers compares each query with at least 8 other keys."""
    (block,) = next_steps.blocks(opened_by_name(report_results(REPORTS["flow"], "king", fast=True, of=small())))
    assert isinstance(block, Commands)
    assert [command.split()[1] for command in block.purposes] == ["reverse", "surgery", "analyse"]


def test_an_encoder_gets_no_command_about_next_tokens() -> None:
    """More tokens add no line about predictions to a model that predicts none."""
    encoder, ids = pretrained_model("bert_bare"), list(range(2, 8))
    results = empty_results(Subject(encoder, ids, encoder.trace(ids)), draw_nulls=True)
    assert missing_blocks(results) == []
    short = empty_results(Subject(encoder, [2, 3], encoder.trace([2, 3])), draw_nulls=True)
    assert str(missing_blocks(short)[0].note) == "A text of 3 tokens or more adds: Groups."
    assert list(next_steps.next_steps(results)) == [f"analyse {name}" for name in next_steps.NEXT_ANALYSES]


def test_the_commands_run_as_they_are_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_bars, "open_model", lambda *_, **__: small())
    (block,) = next_steps.blocks(flow_results())
    assert isinstance(block, Commands)
    assert len(block.purposes) == 3
    for command in block.purposes:
        outcome = run_rheoscope(*shlex.split(command)[1:])
        assert outcome.status == 0, outcome.err


def test_rs_story_equals_the_report() -> None:
    rows = rs.story(model(), model().trace(TEXT))
    expected = story_dataset(replace(flow_results(), card=find_card(model().view)))
    assert rows.sentence.values.tolist() == expected.sentence.values.tolist()
    np.testing.assert_array_equal(rows.percentile, expected.percentile)
    other = rs.load(untrained=True)
    with pytest.raises(rs.RheoscopeError):
        rs.story(other, model().trace(TEXT))
