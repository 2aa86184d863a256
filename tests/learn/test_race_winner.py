"""The winner of a race is saved as a model, and rheoscope and transformers open it with the same logits."""

import json
from pathlib import Path

import pytest
import torch
import transformers

import rheoscope as rs
from rheoscope.learn.race import TrainingMode, run_race
from rheoscope.learn.race_plan import Race
from rheoscope.learn.race_report import make_job, run_race_job
from rheoscope.learn.race_winner import check_can_save, find_winner, save_winner, winning_network
from rheoscope.models.transformer import Transformer
from rheoscope.models.transformers_files import save_for_transformers
from tests.commands.cases import run_rheoscope
from tests.learn.cases import LETTERS, Letters, config, recipe
from tests.learn.test_race_report import OPTIONS, SETTINGS, TEXT

IDS = torch.randint(LETTERS, (3, 8), generator=torch.Generator().manual_seed(0))


def finished_race(folder: Path, packed: bool = True) -> Race:
    race = Race(recipe(), ("tied", "metric"), seeds=3, rates=(1e-3, 1e-2))
    assert run_race(race, Letters(), folder, "cpu", TrainingMode(packed=packed))
    return race


@pytest.mark.parametrize("packed", [True, False])
def test_the_winner_has_the_loss_of_its_log(packed: bool, tmp_path: Path) -> None:
    """Recomputed from the saved weights: the winner has the lowest mean loss, and is its best seed."""
    race = finished_race(tmp_path, packed)
    winner = find_winner(race.packs(), tmp_path)
    logs = [json.loads(line) for file in tmp_path.rglob("log.jsonl") for line in file.read_text().splitlines()]
    final = [line for line in logs if line["step"] == race.recipe.steps]
    means = {
        (entrant, rate): sum(line["loss"] for line in final if (line["entrant"], line["rate"]) == (entrant, rate)) / 3
        for entrant, rate in {(line["entrant"], line["rate"]) for line in final}
    }
    assert len(means) == 6
    assert (winner.pack.entrant, winner.pack.recipe.rate) == min(means, key=lambda key: means[key])
    assert winner.mean_loss == pytest.approx(min(means.values()))
    network = winning_network(winner, tmp_path)
    batches = list(Letters().held_out_batches(winner.pack.recipe))
    with torch.no_grad():
        losses = [torch.nn.functional.cross_entropy(network(x).flatten(0, 1), y.flatten()) for x, y in batches]
    assert float(torch.stack(losses).mean()) == pytest.approx(winner.loss, abs=1e-5)
    assert winner.loss == min(
        line["loss"]
        for line in final
        if (line["entrant"], line["rate"]) == (winner.pack.entrant, winner.pack.recipe.rate)
    )


def test_all_open_it_with_the_same_logits(tmp_path: Path) -> None:
    race = finished_race(tmp_path / "race")
    message = save_winner(race.packs(), tmp_path / "race", None, tmp_path / "hf")
    network = winning_network(find_winner(race.packs(), tmp_path / "race"), tmp_path / "race")
    opened = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "hf", trust_remote_code=True)
    expected = network(IDS)
    assert torch.equal(opened(IDS).logits, expected)
    model = rs.load(tmp_path / "hf")
    assert torch.equal(torch.stack([model.run(ids.tolist()) for ids in IDS]), expected)
    card = json.loads((tmp_path / "hf" / "card.json").read_text())
    assert f"saved {card['entrant']} at rate {card['rate']:g}, seed {card['seed']}" in message
    assert card["seeds"] == 3


def test_transformers_trains_pads_and_generates(tmp_path: Path) -> None:
    network = Transformer(config()).eval()
    opened = transformers.AutoModelForCausalLM.from_pretrained(
        save_for_transformers(network, tmp_path), trust_remote_code=True
    )
    loss = opened(IDS, labels=IDS).loss
    assert float(loss.detach()) == pytest.approx(
        float(torch.nn.functional.cross_entropy(network(IDS)[:, :-1].flatten(0, 1), IDS[:, 1:].flatten()).detach())
    )
    loss.backward()
    assert all(parameter.grad is not None for parameter in opened.parameters())
    mask = torch.ones_like(IDS)
    mask[0, 5:] = 0
    padded = opened(IDS, attention_mask=mask).logits[0, :5]
    assert torch.allclose(padded, network(IDS[:1, :5])[0], atol=1e-5)
    with pytest.raises(rs.RheoscopeError, match="padded on the left"):
        opened(IDS, attention_mask=mask.flip(1))
    start = IDS[:1, :3]
    greedy = opened.generate(start, max_new_tokens=3, do_sample=False, pad_token_id=0)
    for _ in range(3):
        start = torch.cat([start, network(start)[:, -1:].argmax(-1)], 1)
    assert greedy.tolist() == start.tolist()


def test_the_command_saves_a_model_that_generates(tmp_path: Path) -> None:
    (tmp_path / "book.txt").write_text(TEXT)
    job = make_job(None, OPTIONS | {"data": [tmp_path / "book.txt"], "mechanisms": ["tied"]}, SETTINGS)
    assert run_race_job(job, tmp_path / "run", "cpu", save=tmp_path / "hf")
    outcome = run_rheoscope("generate", "the cat", "--model", str(tmp_path / "hf"), "--tokens", "4")
    assert outcome.status == 0, outcome.err
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    model = rs.load(tmp_path / "hf")
    assert tokenizer("the cat")["input_ids"] == model.ids("the cat").tolist()


def test_races_without_a_model_to_save_are_refused(tmp_path: Path) -> None:
    with pytest.raises(rs.RheoscopeError, match="--save writes decoders, but this race trains an encoder"):
        check_can_save(["tied"], "encoder", tmp_path)
    with pytest.raises(rs.RheoscopeError, match=r"--save cannot write mine.py:Mine"):
        check_can_save(["tied", "mine.py:Mine"], "decoder", tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(rs.RheoscopeError, match="Rheoscope did not write"):
        check_can_save(["tied"], "decoder", tmp_path)
