"""Questions put to a model and a text, one analysis after the other; an answer is heard as soon as it is known."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from rheoscope.attention.memory import fitting
from rheoscope.catalogue import analysis
from rheoscope.running.progress import hearing
from rheoscope.shapes import RheoscopeError
from rheoscope.space.model import Model
from rheoscope.space.results import Answers
from rheoscope.space.trace import Trace

if TYPE_CHECKING:
    import xarray

MOST = 4
"""Controls that are a null of their own: fewer have no spread worth the name, more cost more than they tell."""
MOST_DRAWS = 10_000
"""More would not fit the memory of most machines, and tell no more."""
Progress = Callable[[int, int], None]
Settings = dict[str, Any]
Hear = Callable[[Answers], object]
Tell = Callable[[str], Progress]
"""Told what is asked now; gives what will hear how much of it is done."""


@dataclass(frozen=True, eq=False)
class Subject:
    """What analyses are asked about: a model, and a text where there is one."""

    model: Model
    text: Any = None
    trace: Trace | None = None

    def given(self, name: str) -> Any:
        """What a first parameter of this name gets."""
        return {
            "model": self.model,
            "view": self.model.view,
            "trace": self.trace,
            "text": self.text,
            "texts": self.text if isinstance(self.text, list) else [self.text],
        }[name]


Answering = Callable[[Subject, str, Settings, bool, Progress | None], "xarray.Dataset"]
"""From a subject, the name of an analysis, its settings, whether nulls are drawn and who hears how far it is, to its answer."""
Beside = Sequence[Callable[[], Subject]]
"""Each makes a control of a text, when somebody asks for it."""


def _no_settings(so_far: Answers) -> dict[str, Settings]:
    return {"": {}}


@dataclass(frozen=True, eq=False)
class Ask:
    """One analysis of the catalogue, and the settings it is asked with.

    `settings` makes them of what is known so far: {"": settings}, or one entry for each time that it is asked, under a word
    that tells them apart.
    """

    name: str
    settings: Callable[[Answers], dict[str, Settings]] = _no_settings

    def keyed(self, so_far: Answers) -> dict[str, Settings]:
        return {f"{self.name} {word}".strip(): given for word, given in self.settings(so_far).items()}


def with_settings(name: str, **settings: Any) -> Ask:
    """An analysis asked once, with fixed settings."""
    return Ask(name, lambda so_far: {"": settings})


def ask(
    subject: Subject,
    asks: Sequence[Ask],
    nulls: bool = True,
    controls: Beside = (),
    hear: Hear = lambda so_far: None,
    tell: Tell | None = None,
    by: "Answering | None" = None,
) -> Answers:
    """Ask everything; an analysis that refuses this text, or fails, is left out with its reason and takes no other with it.

    `hear` is given the Answers so far after each; `tell` hears what is going on. Without `nulls` nothing is drawn at random.
    `controls` make the same text in untrained models; they are asked what `CONTROLLED` says, without nulls, in a thread of their own,
    which then asks of the text what comes last. Neither thread waits for the other as long as there is something to ask.
    `by` answers of the text itself, where not `answer` does: one that remembers what was asked before.

    >>> import rheoscope as rs
    >>> model = rs.load()
    >>> sorted(ask(Subject(model, "a", model.trace("a")), [Ask("clusters"), Ask("trajectory")]).left_out)
    ['clusters']
    """
    so_far, by = begun(subject, nulls), by or answer
    put = partial(_asked, subject, tell=tell, by=by)
    with _second_thread() as submit:
        known = controlled(controls, [one for one in asks if _controls(one.name, subject)], submit)
        alone = [one for one in reversed(asks) if known and one.name not in STAND_ON]
        alone.sort(key=lambda one: one.name not in BEGUN_FIRST)
        early = {one: submit(_asked, subject, one, so_far, None, by) for one in alone}
        for at, one in enumerate(asks, 1):
            if _nobody_at(early.get(one)):
                so_far = put(one, so_far)
            else:
                early |= _meanwhile(early[one], asks[at:], early, so_far, put)
                so_far = so_far.joined(early[one].result())
            if one.name in known:
                early |= _meanwhile(known[one.name], asks[at:], early, so_far, put)
                so_far = _with_controls(so_far, known[one.name])
            hear(so_far)
    return so_far


Early = dict[Ask, "Future[Answers]"]
"""What is answered before its turn, or will be."""


def _nobody_at(future: "Future[Any] | None") -> bool:
    """Whether nobody has begun; then nobody will, but who asks here."""
    return future is None or future.cancel()


def _meanwhile(
    awaited: "Future[Any]", later: Sequence[Ask], early: Early, so_far: Answers, put: Callable[[Ask, Answers], Answers]
) -> Early:
    """While something is awaited: what comes later, nobody has begun, and stands on nothing that is not known."""
    found: Early = {}
    for one in later:
        if awaited.done():
            break
        if (one.name not in STAND_ON or so_far.asked(STAND_ON[one.name])) and _nobody_at(early.get(one)):
            found[one] = Future()
            found[one].set_result(put(one, so_far))
    return found


def begun(subject: Subject, nulls: bool) -> Answers:
    """Nothing asked yet."""
    return Answers(subject.model.view, subject.model.words, subject.trace, nulls=nulls)


CONTROLLED = {
    "agreement": 1, "distortion": 1, "energy": 1, "transport": 1, "fixed_point": 1, "clusters": MOST, "geometry_kept": MOST,
}  # fmt: skip
"""What untrained controls are asked, and how many of them: one stands beside a number, several are a null of their own."""
LONG = 256
"""Tokens from which on less is asked of the dearest analyses."""
OF_SHORT = ("distortion", "energy", "fixed_point", "geometry_kept")
"""What controls are not asked of a long text."""
STAND_ON = {"purity": "clusters", "distorted_pairs": "agreement", "score_attribution": "agreement"}
"""What is asked by the answer of another analysis, so that it must wait for it."""
BEGUN_FIRST = (*STAND_ON.values(), "fixed_point")
"""What others stand on, and what of a long text takes longest among the last: nothing shall wait for them at the end."""


def _controls(name: str, subject: Subject) -> int:
    """How many controls an analysis is asked of."""
    is_long = subject.trace is not None and len(subject.trace) > LONG
    return 0 if is_long and name in OF_SHORT else CONTROLLED.get(name, 0)


Known = tuple[tuple[Subject, Answers], ...]
"""Every control with what it was asked so far."""


@contextmanager
def _second_thread() -> "Iterator[Callable[..., Future[Any]]]":
    """Does one thing after the other on a core that the text itself leaves idle; what has not begun at the end is dropped."""
    background = ThreadPoolExecutor(1)
    try:
        yield background.submit
    finally:
        background.shutdown(cancel_futures=True)


def controlled(
    controls: Beside, asks: Sequence[Ask], submit: "Callable[..., Future[Any]]"
) -> "dict[str, Future[Known]]":
    """What the controls say, by the name of the analysis."""
    if not controls or not asks:
        return {}
    last: Future[Known] = submit(tuple)
    known: dict[str, Future[Known]] = {}
    for one in asks:
        last = known[one.name] = submit(_further, last, one, controls)
    return known


def _further(before: "Future[Known]", one: Ask, controls: Beside) -> Known:
    """The controls, as many as this analysis is asked of having been made and asked."""
    known, many = before.result(), CONTROLLED[one.name]
    known += tuple((made := make(), begun(made, nulls=False)) for make in controls[len(known) : many])
    return tuple(
        (control, _asked(control, one, answers, None, answer) if at < many else answers)
        for at, (control, answers) in enumerate(known)
    )


def _asked(subject: Subject, one: Ask, so_far: Answers, tell: Tell | None, by: "Answering") -> Answers:
    try:
        keyed = one.keyed(so_far)
    except Exception as error:
        return so_far.after(one.name, error)
    for key, settings in keyed.items():
        progress = None if tell is None else tell(key)
        try:
            so_far = so_far.with_answer(key, by(subject, one.name, settings, so_far.nulls, progress))
        except Exception as error:  # whatever it is, the other answers are not lost with it
            so_far = so_far.after(key, error)
    return so_far


def _with_controls(so_far: Answers, known: "Future[Known]") -> Answers:
    try:
        return replace(so_far, controls=tuple(answers for _, answers in known.result()))
    except Exception as error:
        return so_far.after("the untrained control", error)


def answer(
    subject: Subject, name: str, settings: Settings, nulls: bool = True, progress: Progress | None = None
) -> "xarray.Dataset":
    """One analysis, given what its first parameters name; without `nulls` its draws are none."""
    asked = analysis(name)
    given = {first: subject.given(first) for first in asked.subjects}
    settings = settings if nulls or "draws" not in asked.settings else settings | {"draws": 0}
    if settings.get("draws", 0) > MOST_DRAWS:
        raise RheoscopeError(f"draws are at most {MOST_DRAWS:,}, got {settings['draws']:,}; type draws=1000")
    if progress is not None and asked.tells_progress:
        settings = settings | {"progress": progress}
    with hearing(None if asked.tells_progress else progress), fitting(name, "a shorter text, or device='cpu'"):
        return asked.ask(**given | settings)
