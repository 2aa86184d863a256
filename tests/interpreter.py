"""A fix for Triton's interpreter, which runs kernels without a GPU."""

from typing import Any


def patch_interpreter() -> None:
    """Triton 3.6 converts an array with one element to a number, which NumPy 2.4 no longer allows."""
    from triton.runtime import interpreter

    if (original := interpreter._patch_lang_tensor).__module__ == __name__:
        return

    def patched(tensor: Any, scope: Any) -> None:
        original(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())

    interpreter._patch_lang_tensor = patched
