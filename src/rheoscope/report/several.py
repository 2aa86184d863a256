"""A command some of whose options take several words."""

from typing import Any

from typer.core import TyperCommand


class Several(TyperCommand):
    """A command whose options --data, --held-out, --texts, --set and --penalty take all the words up to the next option."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        option, words = None, []
        for word in args:
            if word.startswith("-"):
                option = word if word in ("--data", "--held-out", "--texts", "--set", "--penalty") else None
                words += [] if option else [word]
            else:
                words += [option, word] if option else [word]
        return super().parse_args(ctx, words)
