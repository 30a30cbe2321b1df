"""Which windows and prefills a build offers that names none; a target says which kind it takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class WindowDefaults:
    """Default sizes, from the longest context and the model's block size.

    `blocks` are windows, each in blocks and at least so many tokens; `shares` are prefills as parts
    of the longest context, one over each number. Without blocks the window is the context.
    """

    window_text: str  # of the help
    prefill_text: str
    blocks: tuple[tuple[int, int], ...] = ()
    shares: tuple[int, ...] = (1,)

    def sizes(
        self, block_size: int, contexts: Sequence[int]
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Windows and prefills, ascending."""
        longest = max(contexts)
        windows = {min(max(n * block_size, least), longest) for n, least in self.blocks}
        prefills = {-(-longest // share) for share in self.shares}
        return tuple(sorted(windows or {longest})), tuple(sorted(prefills))


# Where the library runs the exact shape of a step, the largest costs nothing.
EXACT_SHAPES = WindowDefaults(
    "the largest context, as steps run their exact shape", "the largest context"
)
# Where every step costs what the shape of its instance says.
STATIC_SHAPES = WindowDefaults(
    "two and four blocks",
    "a quarter of the largest context, and all of it",
    blocks=((2, 32), (4, 64)),
    shares=(4, 1),
)
