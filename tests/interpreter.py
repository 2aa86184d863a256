"""Triton kernels without a GPU: a fix for Triton's interpreter."""

from typing import Any


def mend_interpreter() -> None:
    """Triton 3.6 uses an array of one number as the number, which NumPy 2.4 no longer allows."""
    from triton.runtime import interpreter

    if (original := interpreter._patch_lang_tensor).__module__ == __name__:
        return

    def patched(tensor: Any, scope: Any) -> None:
        original(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())

    interpreter._patch_lang_tensor = patched
