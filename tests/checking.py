"""Shapes are checked at every call of the package while it is tested, and the same call is not checked twice.

jaxtyping's check costs more than most functions that it guards, and looks at types, dtypes, shapes and small values alone:
a call that passed with all of these passes again. Functions without a shape in their signature are left to mypy.
"""

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
"""What a dimension (`{n}`) or a Literal may ask for the value of."""
Passed = dict[Hashable, set[Hashable]]
PASSED: defaultdict[Hashable, Passed] = defaultdict(dict)
"""For each function the arguments that passed, and the results that did with them; one entry for all closures of one `def`."""
GIVEN_BACK: ContextVar[Any] = ContextVar("what a function has given back")
checked_always = partial(jaxtyping.jaxtyped, typechecker=beartype)


def install() -> None:
    """Before the package is imported: its functions are given to `jaxtyping.jaxtyped` one by one."""
    jaxtyping.jaxtyped = jaxtyped


def jaxtyped(given: Any = None, *, typechecker: Any = None) -> Any:
    """What takes the place of `jaxtyping.jaxtyped`: a function or a dataclass, checked if its signature has a shape in it."""
    if given is None:
        return partial(jaxtyped, typechecker=typechecker)
    if not isinstance(given, type):
        return once(given) if has_shapes(given) else given
    if is_dataclass(given) and "__init__" in vars(given) and has_shapes(given.__init__):
        given.__init__ = once(given.__init__)
    return given


def has_shapes(function: Callable[..., Any]) -> bool:
    return any(map(is_shape, function.__annotations__.values()))


def is_shape(hint: Any) -> bool:
    """Float[Tensor, "n d"], or a type with one inside; of a type in quotes nobody knows."""
    if isinstance(hint, str):
        return True
    return (isinstance(hint, type) and issubclass(hint, jaxtyping.AbstractArray)) or any(map(is_shape, get_args(hint)))


def look(x: Any) -> Hashable:
    """All that a check can see of a value: of an object of ours that is its type, as its fields had a check of their own."""
    if isinstance(x, Tensor):
        return type(x), x.dtype, x.shape
    kind = type(x)
    if kind in BY_VALUE:
        return kind, x
    return (kind, *map(look, x)) if kind in (tuple, list) else kind


def once(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with jaxtyping's check, left out where the same call has passed."""
    passed = PASSED[function.__module__, function.__qualname__, function.__code__.co_firstlineno]
    checked = cache(lambda: checked_always(function))  # made when it is needed: that takes longer than many tests
    checked_result = cache(lambda: checked_always(wraps(function)(lambda *args, **kw: GIVEN_BACK.get())))

    @wraps(function)
    def call(*args: Any, **kw: Any) -> Any:
        __tracebackhide__ = True
        if jaxtyping.config.jaxtyping_disable:
            return function(*args, **kw)
        given = (*map(look, args), *((name, look(x)) for name, x in kw.items()))
        results = passed.get(given)
        if results is None:
            result = checked()(*args, **kw)
        else:
            result = function(*args, **kw)
            if look(result) in results:
                return result
            before = GIVEN_BACK.set(result)
            try:
                checked_result()(*args, **kw)
            finally:
                GIVEN_BACK.reset(before)
        passed.setdefault(given, set()).add(look(result))
        return result

    return call
