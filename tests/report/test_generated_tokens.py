"""`rheoscope generate --flow` and `--explain`: a line per token, tables that add up, and a file with every number."""

import json
from functools import cache
from pathlib import Path

import pytest

import rheoscope as rs
from rheoscope.flow.generation.generated_token import GeneratedToken
from rheoscope.flow.generation.generation import Generation
from rheoscope.picture.blocks import Lines, Table
from rheoscope.report.generated_tokens import answer_blocks, lens_words, padded_line, token_line
from tests.commands.cases import run_rheoscope

PROMPT = "The keys to the cabinet are"


@cache
def generated() -> tuple[Generation, list[GeneratedToken]]:
    result = rs.generate(rs.load(), PROMPT, tokens=3)
    return result, list(result)


def test_every_token_has_a_line_with_its_numbers() -> None:
    for token in generated()[1]:
        line = token_line(token)
        assert line.split()[0] == token.text.replace(" ", "·")
        assert f"{token.from_prompt:+.1f}" in line
        assert token.heads[0].name in line
        assert line.endswith(lens_words(token))


def test_columns_align_for_wide_characters() -> None:
    from rich.cells import cell_len

    first, second = (padded_line([token, "1 %", "L0", "+1.0", "+0.0", "x", "y"]) for token in ("词元", "ab"))
    assert cell_len(first) == cell_len(second)


def test_the_groups_of_an_answer_add_up_to_its_total() -> None:
    lines, prompt, heads = answer_blocks(generated()[0].explain())
    assert isinstance(lines, Lines)
    assert isinstance(prompt, Table)
    assert isinstance(heads, Table)
    parts = lines.lines[0].parameters["groups"].parameters.values()  # type: ignore[attr-defined]
    total = lines.lines[0].parameters["total"]  # type: ignore[attr-defined]
    assert sum(float(part.parameters["value"]) for part in parts) == pytest.approx(total, abs=0.26)
    sizes = [abs(float(row[1].text)) for row in heads.rows]
    assert sizes == sorted(sizes, reverse=True)
    assert len(prompt.rows) == generated()[0].n_prompt


def test_the_command_prints_while_it_generates_and_writes_every_number(tmp_path: Path) -> None:
    arguments = ["generate", "--temperature", "0", "--tokens", "3", "--device", "cpu", PROMPT]
    plain = run_rheoscope(*arguments)
    explained = run_rheoscope(*arguments, "--explain", "--json", str(tmp_path / "answer.json"))
    assert explained.status == 0, explained.err
    assert generated()[0].text.strip() in explained.words
    assert plain.out.strip().removeprefix(PROMPT) == generated()[0].text
    assert "The whole answer" in explained.out
    assert "Heads that write the answer" in explained.out
    written = json.loads((tmp_path / "answer.json").read_text())["generate"]["data_vars"]
    assert written["logit"]["data"] == pytest.approx(generated()[0].explain().logit.values.tolist(), abs=1e-4)
    assert "The whole answer" not in run_rheoscope(*arguments, "--flow").out


def test_a_model_without_generation_is_refused_in_one_line(tmp_path: Path) -> None:
    from rheoscope.models.checkpoint import save
    from rheoscope.models.config import Config
    from rheoscope.models.transformer import build
    from rheoscope.models.vocabulary import train_bpe

    config = Config(vocabulary=270, width=16, depth=1, heads=2, context=32, form="encoder")
    save(build(config), tmp_path, train_bpe(["the cat sat"] * 5, 270, ["<|endoftext|>"]))
    outcome = run_rheoscope("generate", "--flow", "-m", str(tmp_path), "the cat")
    assert outcome.status == 1
    assert "does not generate text token by token" in outcome.err
