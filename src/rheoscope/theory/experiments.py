"""The registry of the theory experiments, and `rs.dynamics`, which runs one."""

from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING

import torch

from rheoscope.messages.advice import Advice
from rheoscope.messages.message import Message
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
    """An experiment: its name, what it shows, the function that runs it, and the source of the theory."""

    name: str
    phrase: Message
    run: "Callable[[int], xarray.Dataset]"
    source: str


EXPERIMENTS = {
    experiment.name: experiment
    for experiment in (
        Experiment(
            "equiangular", Message("equiangular particles converge along one curve"), equiangular, "arXiv:2312.10794"
        ),
        Experiment(
            "energy", Message("with Q = K = V = I an energy increases at every step"), energy, "arXiv:2312.10794"
        ),
        Experiment(
            "metastable",
            Message("sharp attention keeps clusters separate for exponentially long"),
            metastable,
            "arXiv:2410.06833",
        ),
        Experiment(
            "causal", Message("the first token never moves and all others converge to it"), causal, "arXiv:2411.04990"
        ),
        Experiment(
            "free_space",
            Message("rescaled tokens converge to corners of a polytope or to two planes"),
            free_space,
            "arXiv:2305.05465",
        ),
        Experiment(
            "gaussian",
            Message("a Gaussian cloud stays Gaussian and its covariance follows an equation"),
            gaussian,
            "arXiv:2501.18322",
        ),
        Experiment(
            "long_context",
            Message("at β = c log n a critical c separates collapse from no change"),
            long_context,
            "arXiv:2510.05554",
        ),
        Experiment(
            "rank_collapse",
            Message("attention alone collapses cubically, the skip connection prevents it"),
            rank_collapse,
            "arXiv:2103.03404",
        ),
        Experiment(
            "shaped",
            Message("over a thousand layers softmax makes tokens equal, shaped attention does not"),
            shaped,
            "arXiv:2306.17759",
        ),
        Experiment(
            "shaped_width",
            Message("at finite width angles are random and follow a stochastic equation"),
            shaped_width,
            "arXiv:2306.17759",
        ),
        Experiment(
            "heat",
            Message("metric attention with a narrow bandwidth is diffusion with drift"),
            heat,
            "Coifman and Lafon 2006",
        ),
        Experiment(
            "relations",
            Message("two feature maps fit any relation, one map only a similarity"),
            relations,
            "arXiv:2402.08856",
        ),
        Experiment(
            "sinkformer",
            Message("Sinkhorn attention reads every token equally, and its flow is heat"),
            sinkformer,
            "arXiv:2110.11773",
        ),
    )
}


@torch.no_grad()
def dynamics(name: str, seed: int = 0) -> "xarray.Dataset":
    """Run one theory experiment: particles under attention without trained weights, compared with theory.

    **Question** Does attention behave as the papers prove, and how close are the numbers?

    **Formula** The docstring of each experiment has its formula: `help(rs.experiments()[name].run)`.

    **Returns** (quantity): `number`, `expected`, `gap` (relative, or absolute if 0 is expected), with the coordinate `why`, the
    reason for the expected value. (rule): `contrast`, the same quantity where the theory does not apply. Also the curves of the
    experiment, each with its definition, and the settings in `attrs`.

    **Laws** Every gap is at most 2 %. Equal seeds give equal numbers.

    **See also** `experiments()` lists the names. `rheoscope dynamics NAME` prints the numbers and draws the figure.

    >>> import rheoscope as rs
    >>> result = rs.dynamics("rank_collapse")
    >>> round(float(result.number[0]), 1), float(result.expected[0])
    (3.0, 3.0)
    """
    if not isinstance(name, str) or name not in EXPERIMENTS:
        suggestions = get_close_matches(str(name), EXPERIMENTS, n=3)
        expected, first = ", ".join(suggestions or EXPERIMENTS), (suggestions or list(EXPERIMENTS))[0]
        raise RheoscopeError(
            Message(
                "unknown experiment {received!r}, expected one of {expected}", received=str(name), expected=expected
            ),
            Advice(f"rs.dynamics({first!r})", f"rheoscope dynamics {first}"),
        )
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
    """Every theory experiment with its phrase, its function and its source.

    **See also** `dynamics(name)` runs one. `rheoscope dynamics --list` prints the table.

    >>> import rheoscope as rs
    >>> rs.experiments()["causal"].phrase
    'the first token never moves and all others converge to it'
    """
    return dict(EXPERIMENTS)
