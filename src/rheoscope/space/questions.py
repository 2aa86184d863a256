"""A question about a text in a model: the analyses that it needs and the function that judges their results."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rheoscope.messages.message import Message, join
from rheoscope.space.results import Results
from rheoscope.statistics.statement import Statement, correct_for_family
from rheoscope.statistics.verdict import UNCLEAR, Claim, Verdict


@dataclass(frozen=True, eq=False)
class Question:
    """A question that a report answers. The analysis that answers it declares it in its `words.py`.

    `order` is its place among the questions. `n_statements` is the number of tests behind the answer, and `family_size` is the
    number of all tests of a run, for which every test is corrected. The report sets it.
    """

    order: int
    name: str
    question: str
    needs: tuple[str, ...]
    deeper: str
    judge: "Callable[[Results, Question], Verdict]"
    required_fields: tuple[str, ...] = ()
    """Fields that the answer needs and that not every text or model has."""
    n_statements: int = 1
    family_size: int = 1

    def verdict(self, results: Results) -> Verdict:
        """The answer, or the reason why there is none."""
        missing_analyses = [name for name in self.needs if not results.has(name)]
        if missing_analyses:
            return self.unclear(results.reason(missing_analyses[0]))
        if not results.has_nulls:
            return self.unclear(Message("null distributions were not drawn (--fast)"))
        missing_fields = [
            field for field in self.required_fields if not any(field in results.datasets[name] for name in self.needs)
        ]
        if missing_fields:
            return self.unclear(Message("this text in this model has no field {field}", field=missing_fields[0]))
        return self.judge(results, self)

    def unclear(self, reason: str) -> Verdict:
        return Verdict(self.question, UNCLEAR, reason, self.deeper)

    def claim(self, statement: Statement, holds: bool, min_effect: float) -> Claim:
        """A claim whose statement is corrected for all tests of a run."""
        return Claim(correct_for_family([statement], self.family_size)[0], holds, min_effect)

    def from_claims(self, claims: Sequence[Claim], line: str) -> Verdict:
        """The answers of all claims, joined. Equal answers appear once."""
        answers = [claim.answer for claim in claims]
        answer = answers[0] if len(set(answers)) == 1 else join(" · ", answers)
        return Verdict(self.question, answer, line, self.deeper, [claim.statement for claim in claims])
