"""Kernels where there is no GPU: Triton's interpreter, and what its release lacks."""

from typing import Any


def mend_interpreter() -> None:
    """Triton 3.6 takes an array of one number for the number, which NumPy 2.4 no longer does."""
    from triton.runtime import interpreter

    if (own := interpreter._patch_lang_tensor).__module__ == __name__:
        return

    def patched(tensor: Any, scope: Any) -> None:
        own(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())

    interpreter._patch_lang_tensor = patched
