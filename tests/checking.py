"""Shape checks at every call of the package during tests; an identical call is checked once.

jaxtyping's check costs more than most functions that it guards. It depends only on types, dtypes, shapes and small values, so a
call that passed with the same ones passes again. Functions without a shape in their signature are left to mypy.
"""

import sys
from collections import defaultdict
from collections.abc import Callable, Hashable
from contextvars import ContextVar
from dataclasses import is_dataclass
from functools import cache, partial, wraps
from typing import Any, get_args

import jaxtyping
from beartype import beartype
from torch import Tensor

BY_VALUE = {int, bool, str}
"""Types whose value a dimension (`{n}`) or a Literal may depend on."""
Passed = dict[Hashable, set[Hashable]]
PASSED: defaultdict[Hashable, Passed] = defaultdict(dict)
"""For each function the arguments that passed, with the results that passed; one entry for all closures of one `def`."""
RETURN_VALUE: ContextVar[Any] = ContextVar("the return value to check")
checked_always = partial(jaxtyping.jaxtyped, typechecker=beartype)


def install() -> None:
    """Replace `jaxtyping.jaxtyped`, before the package is imported and its functions are decorated."""
    assert "rheoscope" not in sys.modules, "a conftest.py imports the package; import it in its fixtures"
    jaxtyping.jaxtyped = jaxtyped


def jaxtyped(target: Any = None, *, typechecker: Any = None) -> Any:
    """The replacement of `jaxtyping.jaxtyped`: check a function or a dataclass if its signature has a shape."""
    if target is None:
        return partial(jaxtyped, typechecker=typechecker)
    if not isinstance(target, type):
        return once(target) if has_shapes(target) else target
    if is_dataclass(target) and "__init__" in vars(target) and has_shapes(target.__init__):
        target.__init__ = once(target.__init__)
    return target


def has_shapes(function: Callable[..., Any]) -> bool:
    return any(map(is_shape, function.__annotations__.values()))


def is_shape(hint: Any) -> bool:
    """Whether a type is Float[Tensor, "n d"], contains one, or is in quotes, so that its content is unknown."""
    if isinstance(hint, str):
        return True
    return (isinstance(hint, type) and issubclass(hint, jaxtyping.AbstractArray)) or any(map(is_shape, get_args(hint)))


def signature_of(x: Any) -> Hashable:
    """Everything that a check can see of a value. For our own objects this is the type, since their fields were checked."""
    if isinstance(x, Tensor):
        return type(x), x.dtype, x.shape
    kind = type(x)
    if kind in BY_VALUE:
        return kind, x
    return (kind, *map(signature_of, x)) if kind in (tuple, list) else kind


def once(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with jaxtyping's check, which is skipped if an identical call has passed."""
    passed = PASSED[function.__module__, function.__qualname__, function.__code__.co_firstlineno]
    checked = cache(lambda: checked_always(function))  # lazy: decorating takes longer than many tests
    checked_result = cache(lambda: checked_always(wraps(function)(lambda *args, **kw: RETURN_VALUE.get())))

    @wraps(function)
    def call(*args: Any, **kw: Any) -> Any:
        __tracebackhide__ = True
        if jaxtyping.config.jaxtyping_disable:
            return function(*args, **kw)
        arguments = (*map(signature_of, args), *((name, signature_of(x)) for name, x in kw.items()))
        results = passed.get(arguments)
        if results is None:
            result = checked()(*args, **kw)
        else:
            result = function(*args, **kw)
            if signature_of(result) in results:
                return result
            token = RETURN_VALUE.set(result)
            try:
                checked_result()(*args, **kw)
            finally:
                RETURN_VALUE.reset(token)
        passed.setdefault(arguments, set()).add(signature_of(result))
        return result

    return call
