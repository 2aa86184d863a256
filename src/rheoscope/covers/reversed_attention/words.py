"""How the loss wants attention to change: the heads it pulls at most, and the tokens they should look at."""

import math
from typing import TYPE_CHECKING

from rheoscope.messages.numbers import fixed
from rheoscope.picture.blocks import Block, Cell, Lines, Table
from rheoscope.picture.token_labels import shown
from rheoscope.space.results import Answers

if TYPE_CHECKING:
    import xarray

STEP = -0.1
"""The η whose effect is told: weights moved a tenth of R against it."""
LISTED = 10


def blocks(answers: Answers) -> list[Block]:
    """The heads that are pulled at most, and what the pull says."""
    if "reversed_attention" not in answers.found:
        return []
    return [head_table(answers), Lines("What the pull says", sentences(answers))]


def strongest(found: "xarray.Dataset", top: int = LISTED) -> list[tuple[int, int]]:
    """Heads by ‖R‖, the largest first."""
    order = found.norm.values.ravel().argsort()[::-1][:top]
    return [divmod(int(at), found.sizes["head"]) for at in order]


def pulls(found: "xarray.Dataset", layer: int, head: int, sign: int, most: int = 2) -> list[tuple[int, float]]:
    """Tokens with Σ_i R_ij: those whose scores should rise (sign −1) or fall (sign 1), the strongest first."""
    column = found.pull.values[layer, head]
    order = (sign * column).argsort()[::-1][:most]
    return [(int(at), float(column[at])) for at in order if sign * column[at] > 0]


def head_table(answers: Answers) -> Table:
    """A row a head: ‖R‖, and the tokens that it should look at more and less."""
    found, tokens = answers.found["reversed_attention"], answers.text.tokens
    target, at = shown(answers.words([int(found.attrs["target"])])[0]), int(found.attrs["token"])
    rows = []
    for layer, head in strongest(found, int(found.attrs.get("top", LISTED))):
        more, less = (_named(pulls(found, layer, head, sign), tokens) for sign in (-1, 1))
        rows.append([*map(Cell, (f"L{layer}.H{head}", f"{float(found.norm[layer, head]):.4f}", more, less))])
    header = [
        Cell("head"),
        Cell("‖R‖", str(found.norm.attrs["definition"])),
        Cell("should look more at", f"{found.pull.attrs['definition']}; where it is below 0, told without its sign"),
        Cell("should look less at", f"{found.pull.attrs['definition']}; where it is above 0"),
    ]
    heading = f"Heads that L = −log p({target}) after {shown(tokens[at])}, token {at}, pulls at most"
    return Table(heading, header, rows, frozenset({0, 2, 3}))


def _named(some: list[tuple[int, float]], tokens: list[str]) -> str:
    return "  ".join(f"{shown(tokens[token])} {token} ({fixed(abs(value), 3)})" for token, value in some)


def sentences(answers: Answers) -> list[str]:
    """How likely the target is, which head, how gathered the pull is, and whether following it helps."""
    found, tokens = answers.found["reversed_attention"], answers.text.tokens
    target, norm, loss = (
        shown(answers.words([int(found.attrs["target"])])[0]),
        found.norm.values.ravel(),
        float(found.loss),
    )
    few = max(1, len(norm) // 20)
    share = sum(sorted(norm.tolist())[-few:]) / max(float(norm.sum()), 1e-30)
    layer, head = strongest(found, 1)[0]
    more = pulls(found, layer, head, -1, 1)
    at = f", which should look more at {shown(tokens[more[0][0]])} (token {more[0][0]})" if more else ""
    lines = [
        f"The model gives {target} the probability {math.exp(-loss):.3g} ({loss:.3f} nats).",
        f"The loss pulls hardest at L{layer}.H{head}{at}." if norm.any() else "The loss pulls at no head.",
    ]
    if norm.any() and len(norm) > 1:
        have = (
            f"The strongest of {len(norm)} heads has" if few == 1 else f"The strongest {few} of {len(norm)} heads have"
        )
        lines.append(f"{have} {share:.0%} of the pull; spread evenly it would be {few / len(norm):.0%}.")
    if "attention_patching" not in answers.found:
        return lines
    patched = answers.found["attention_patching"]
    after, expected = float(patched.loss.sel(eta=STEP)), float(patched.predicted.sel(eta=STEP))
    return [*lines, f"All weights moved by {STEP} R: the loss becomes {after:.3f} (to first order {expected:.3f})."]
