"""The experiments, one row each: the only registry of the theory bench."""

from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING

import torch

from rheoscope.shapes import RheoscopeError
from rheoscope.theory.causal import causal
from rheoscope.theory.energy import energy
from rheoscope.theory.equiangular import equiangular
from rheoscope.theory.free_space import free_space
from rheoscope.theory.gaussian import gaussian
from rheoscope.theory.heat import heat
from rheoscope.theory.long_context import long_context
from rheoscope.theory.metastable import metastable
from rheoscope.theory.rank_collapse import rank_collapse
from rheoscope.theory.relations import relations
from rheoscope.theory.shaped import shaped
from rheoscope.theory.shaped_width import shaped_width
from rheoscope.theory.sinkformer import sinkformer

if TYPE_CHECKING:
    import xarray


@dataclass(frozen=True)
class Experiment:
    """One row: its name, what it shows in a phrase, the function that does it, and where the theory is."""

    name: str
    phrase: str
    run: "Callable[[int], xarray.Dataset]"
    source: str


# fmt: off
EXPERIMENTS = {
    experiment.name: experiment
    for experiment in (
        Experiment("equiangular", "particles at equal angles gather along one curve", equiangular, "arXiv:2312.10794"),
        Experiment("energy", "with Q = K = V = I an energy rises at every step", energy, "arXiv:2312.10794"),
        Experiment("metastable", "sharp attention holds clusters apart for exponentially long", metastable, "arXiv:2410.06833"),
        Experiment("causal", "the first token never moves and all come to it", causal, "arXiv:2411.04990"),
        Experiment("free_space", "tokens settle, generically on corners of a polytope, or on two planes", free_space, "arXiv:2305.05465"),
        Experiment("gaussian", "a Gaussian cloud stays one, its covariance has an equation", gaussian, "arXiv:2501.18322"),
        Experiment("long_context", "at β = c log n one value of c divides collapse from stillness", long_context, "arXiv:2510.05554"),
        Experiment("rank_collapse", "attention alone collapses cubically, the skip prevents it", rank_collapse, "arXiv:2103.03404"),
        Experiment("shaped", "a thousand layers: softmax makes tokens alike, shaped attention does not", shaped, "arXiv:2306.17759"),
        Experiment("shaped_width", "at finite width angles are random, with the law of an equation", shaped_width, "arXiv:2306.17759"),
        Experiment("heat", "metric attention of narrow bandwidth is a diffusion with drift", heat, "Coifman and Lafon 2006"),
        Experiment("relations", "two feature maps fit any relation, one map only a similarity", relations, "arXiv:2402.08856"),
        Experiment("sinkformer", "Sinkhorn reads every token equally, and its flow is heat", sinkformer, "arXiv:2110.11773"),
    )
}
# fmt: on


@torch.no_grad()
def dynamics(name: str, seed: int = 0) -> "xarray.Dataset":
    """One experiment of the theory bench: particles under attention without trained weights, beside what theory gives.

    **Answers** "does attention by itself do what the papers prove, and at which number?"

    **Formula** each experiment's stands in its docstring, `help(rs.experiments()[name].run)`.

    **Gives** (quantity): `number`, `expected`, `gap` (relative; absolute where 0 is expected), with `why` as the reason of
    the expected value; (rule): `contrast`, the same under another rule, where there is one; the curves of the experiment,
    each with its definition; settings in `attrs`.

    **Laws** every gap is at most 2 %; the same seed gives the same numbers.

    **Siblings** `experiments()` lists the names; `rheoscope dynamics NAME` prints the numbers and draws the figure.

    >>> import rheoscope as rs
    >>> found = rs.dynamics("rank_collapse")
    >>> round(float(found.number[0]), 1), float(found.expected[0])
    (3.0, 3.0)
    """
    if not isinstance(name, str) or name not in EXPERIMENTS:
        suggestions = get_close_matches(str(name), EXPERIMENTS, n=3)
        raise RheoscopeError(f"unknown experiment {name!r}; type one of {', '.join(suggestions or EXPERIMENTS)}")
    experiment = EXPERIMENTS[name]
    result = experiment.run(seed)
    result.attrs = {
        "analysis": "dynamics",
        "experiment": name,
        "shows": experiment.phrase,
        "source": experiment.source,
        "seed": seed,
    } | result.attrs
    return result


def experiments() -> dict[str, Experiment]:
    """Every experiment of the theory bench with its phrase, its function and its source.

    **Siblings** `dynamics(name)` does one; `rheoscope dynamics --list` prints the table.

    >>> import rheoscope as rs
    >>> rs.experiments()["causal"].phrase
    'the first token never moves and all come to it'
    """
    return dict(EXPERIMENTS)
