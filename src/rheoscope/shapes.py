"""The axis vocabulary, the array aliases and the one error that a user's mistake raises.

Every file of Rheoscope speaks these letters; a shape in a signature is read with this table.

| axis | meaning |
|---|---|
| `b` | texts of a batch |
| `h` | query heads; query head `h` reads key/value head `h // (h/g)` |
| `g` | key/value heads (`g` divides `h`) |
| `m` | queries |
| `n` | keys; query `i` of `m` sits at position `n - m + i`, so the last query sees the last key |
| `d` | width of a query (d_q) |
| `c` | width of a key (d_k): that of a query, except where the score maps both (additive, bilinear, relation) |
| `e` | width of a value (d_v) |

Tokens are row vectors. A key that a mask forbids has score -inf and weight exactly 0; a row in which every key is
forbidden has weights 0 and output 0, never NaN.
"""

from jaxtyping import Bool, Float, Int
from torch import Tensor

Queries = Float[Tensor, "b h m d"]
Keys = Float[Tensor, "b h n c"]
Values = Float[Tensor, "b h n e"]
Outputs = Float[Tensor, "b h m e"]
Scores = Float[Tensor, "b h m n"]
Weights = Float[Tensor, "b h m n"]
RowAt = Int[Tensor, " m"]
KeyAt = Int[Tensor, " n"]
Permitted = Bool[Tensor, "*#bh m n"]


class RheoscopeError(ValueError):
    """A mistake that the caller can mend: one line that says what came, what was expected and what to type.

    >>> raise RheoscopeError("sigma must be positive, got -1.0; type mechanism('metric', sigma=1.0)")
    Traceback (most recent call last):
    rheoscope.shapes.RheoscopeError: sigma must be positive, got -1.0; type mechanism('metric', sigma=1.0)
    """
