"""A bounded pool of decode states: a decode takes a free one, makes one, or waits for one."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING
from weakref import WeakSet

from .contract import LopaError
from .decoder import Decoder
from .engines.protocol import DecodeState
from .manifest import ModelInfo

if TYPE_CHECKING:
    from .options import DecodeOptions

MAX_DECODES = 1024
_SEVERAL = 0  # no thread has this number


class PooledState:
    """A decode state, the decoder made last for it, and the thread that holds it."""

    def __init__(self, state: DecodeState, model: ModelInfo) -> None:
        self.state, self._model = state, model
        self.holder: int | None = None
        self._last: tuple[DecodeOptions, Decoder] | None = None

    def decoder(self, options: DecodeOptions) -> Decoder:
        """Return the decoder of resolved options, kept while they stay the same."""
        options = replace(options, seed=0)
        if self._last is None or self._last[0] != options:
            self._last = (options, options.decoder(self.state, self._model))
        return self._last[1]

    def used_here(self) -> None:
        """Note that this thread goes on with a decode, perhaps one that another thread began."""
        if self.holder != threading.get_ident():
            self.holder = _SEVERAL


class StatePool:
    """At most `bound` states, made when they are needed first.

    A state that is lost, by an interrupt between two lines, is made again.
    """

    def __init__(self, make: Callable[[], PooledState], bound: int) -> None:
        """Raise LopaError unless `bound` is 1 to MAX_DECODES."""
        if isinstance(bound, bool) or not isinstance(bound, int) or not 1 <= bound <= MAX_DECODES:
            raise LopaError(
                f"decodes is {bound!r}, expected a whole number from 1 to {MAX_DECODES}"
            )
        self.bound = bound
        self._make = make
        self._alive: WeakSet[PooledState] = WeakSet()
        # The garbage collector gives states back wherever it runs: only this queue allows that.
        self._free: queue.SimpleQueue[PooledState] = queue.SimpleQueue()
        self._making = threading.Lock()
        self._waiting: set[int] = set()

    @property
    def free(self) -> int:
        """States that a decode can take without waiting."""
        return self.bound - sum(1 for pooled in list(self._alive) if pooled.holder is not None)

    def take(self) -> PooledState:
        """Take a state, and wait for one while others hold all; `give` it back.

        Raises LopaError when none will come: every one is held by a stream of this thread, or of
        another that waits here, too. Streams that several threads have advanced do not count.
        """
        pooled = self._ready() or self._wait()
        pooled.holder = threading.get_ident()
        return pooled

    def give(self, pooled: PooledState) -> None:
        """Give a state back, from any thread."""
        pooled.holder = None
        self._free.put(pooled)

    @contextmanager
    def borrow(self) -> Iterator[PooledState]:
        """Hold a state for the time of a block."""
        pooled = self.take()
        try:
            yield pooled
        finally:
            self.give(pooled)

    def _ready(self) -> PooledState | None:
        """A free state, or a new one."""
        try:
            return self._free.get_nowait()
        except queue.Empty:
            pass
        with self._making:
            if len(self._alive) >= self.bound:
                return None
            pooled = self._make()
            self._alive.add(pooled)
            return pooled

    def _wait(self) -> PooledState:
        thread = threading.get_ident()
        with self._making:
            self._waiting.add(thread)
            holders = [pooled.holder for pooled in list(self._alive)]
            if len(holders) >= self.bound and self._waiting.issuperset(holders):
                self._waiting.discard(thread)
                raise LopaError(
                    f"all {self.bound} decodes of this session are held by unfinished streams that "
                    "wait for this one; finish or close a stream first, open the bundle with more "
                    "decodes, or use session.fork()"
                )
        try:
            return self._free.get()
        finally:
            self._waiting.discard(thread)
