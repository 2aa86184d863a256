"""The axis letters, the array types and RheoscopeError, the error for a caller's mistake.

Every file of Rheoscope uses these letters in the shapes of its signatures.

| axis | meaning |
|---|---|
| `b` | texts of a batch |
| `h` | query heads; query head `h` uses key/value head `h // (h/g)` |
| `g` | key/value heads (`g` divides `h`) |
| `m` | queries |
| `n` | keys; query `i` of `m` has position `n - m + i`, so the last query sees the last key |
| `d` | width of a query (d_q) |
| `c` | width of a key (d_k): equal to d_q unless the score maps both (additive, bilinear, relation) |
| `e` | width of a value (d_v) |

Tokens are row vectors. A masked key has score -inf and weight exactly 0. A row in which every key is masked has weights 0
and output 0, never NaN.
"""

from typing import Literal

from jaxtyping import Bool, Float, Int
from torch import Tensor

from rheoscope.messages.advice import Advice, with_advice
from rheoscope.messages.message import Message

Queries = Float[Tensor, "b h m d"]
Keys = Float[Tensor, "b h n c"]
Values = Float[Tensor, "b h n e"]
Outputs = Float[Tensor, "b h m e"]
Scores = Float[Tensor, "b h m n"]
Weights = Float[Tensor, "b h m n"]
QueryPositions = Int[Tensor, " m"]
KeyPositions = Int[Tensor, " n"]
AllowedMask = Bool[Tensor, "*#bh m n"]


class RheoscopeError(ValueError):
    """A mistake that the caller can correct, in one line: what was received, what was expected, what to type.

    `message` states the problem. `advice` is the next step in Python, on the command line and on the page. `str(error)`
    shows the Python form, `error.on("shell")` the one of the command line.

    >>> from rheoscope.messages.advice import use
    >>> raise RheoscopeError("sigma must be positive, got -1.0", use(sigma=1.0))
    Traceback (most recent call last):
    rheoscope.shapes.RheoscopeError: sigma must be positive, got -1.0; type sigma=1.0
    """

    def __init__(self, message: str, advice: Advice | None = None) -> None:
        super().__init__(message, advice)
        self.message, self.advice = message, advice

    def on(self, surface: Literal["python", "shell", "page"]) -> Message:
        """The whole line for one surface."""
        return with_advice(self.message, self.advice, surface)

    def __str__(self) -> str:
        return str(self.on("python"))
