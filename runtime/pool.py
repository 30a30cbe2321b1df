"""A bounded pool of decode states: a decode takes a free one, makes one, or waits for one."""

from __future__ import annotations

import queue
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from .contract import LopaError
from .decoder import Decoder
from .engines.protocol import DecodeState
from .manifest import ModelInfo

if TYPE_CHECKING:
    from .options import Plan

MAX_DECODES = 1024
POLL = 1.0  # seconds; how late a waiting thread sees a state whose holder vanished
_SEVERAL = 0  # no thread has this number


class PooledState:
    """A decode state with the decoder made last for it."""

    def __init__(self, state: DecodeState, model: ModelInfo) -> None:
        self.state, self._model = state, model
        self.lease: weakref.ref[Lease] | None = None
        self._last: tuple[Plan, Decoder] | None = None

    def decoder(self, plan: Plan) -> Decoder:
        """Return the decoder of a plan, kept while it stays the same."""
        if self._last is None or self._last[0] != plan:
            self._last = (plan, plan.decoder(self.state, self._model))
        return self._last[1]

    @property
    def holder(self) -> int | None:
        """The thread that holds it, 0 for several, None when it is free."""
        lease = None if self.lease is None else self.lease()
        return None if lease is None else lease.holder


class Lease:
    """The right to use a state, for as long as this object exists or until it is given back."""

    def __init__(self, holder: int) -> None:
        self.holder = holder
        self.pooled: PooledState

    def used_here(self) -> None:
        """Note that this thread goes on with a decode, perhaps one that another thread began."""
        if self.holder != threading.get_ident():
            self.holder = _SEVERAL


class StatePool:
    """At most `bound` states, made when they are needed first.

    A state is free when its lease is: whatever becomes of a decode, an interrupt between two lines
    included, its state comes back.
    """

    def __init__(self, make: Callable[[], PooledState], bound: int) -> None:
        """Raise LopaError unless `bound` is 1 to MAX_DECODES."""
        if isinstance(bound, bool) or not isinstance(bound, int) or not 1 <= bound <= MAX_DECODES:
            raise LopaError(
                f"decodes is {bound!r}, expected a whole number from 1 to {MAX_DECODES}"
            )
        self.bound = bound
        self._make = make
        self._states: list[PooledState] = []
        self._lock = threading.Lock()  # of who takes; who gives must not need it
        self._waiting: set[int] = set()
        # The garbage collector gives states back, anywhere: only this kind of queue allows that.
        self._given: queue.SimpleQueue[None] = queue.SimpleQueue()

    @property
    def free(self) -> int:
        """States that a decode can take without waiting."""
        return self.bound - sum(pooled.holder is not None for pooled in self._states)

    @contextmanager
    def borrow(self) -> Iterator[Lease]:
        """Hold a state for the time of a block; waits while others hold all, first come first.

        Raises LopaError when none will come: every one is held by a stream of this thread, or of
        another that waits here, too. Streams that several threads have advanced do not count.
        """
        lease = Lease(threading.get_ident())
        try:
            self._take(lease)
            yield lease
        finally:
            self._give(lease)

    def _take(self, lease: Lease) -> None:
        with self._lock:
            turn = not self._waiting
            self._waiting.add(lease.holder)
        try:
            while not (turn and self._granted(lease)):
                self._check_that_others_go_on()
                with suppress(queue.Empty):
                    self._given.get(timeout=POLL)
                turn = True
        finally:
            self._waiting.discard(lease.holder)

    def _granted(self, lease: Lease) -> bool:
        """Lease a free state, or a new one."""
        with self._lock:
            pooled = next((item for item in self._states if item.holder is None), None)
            if pooled is None:
                if len(self._states) >= self.bound:
                    return False
                pooled = self._make()
                self._states.append(pooled)
            self._waiting.discard(lease.holder)
            lease.pooled = pooled
            pooled.lease = weakref.ref(lease)
            return True

    def _give(self, lease: Lease) -> None:
        """Free the state from any thread, in whatever that thread was doing."""
        pooled = getattr(lease, "pooled", None)
        # A lease that is being collected was free already, perhaps it is someone else's by now.
        if pooled is not None and pooled.lease is not None and pooled.lease() is lease:
            pooled.lease = None
        if self._given.qsize() < len(self._waiting):
            self._given.put(None)

    def _check_that_others_go_on(self) -> None:
        with self._lock:
            holders = {pooled.holder for pooled in self._states}
            if len(self._states) >= self.bound and holders <= self._waiting:
                raise LopaError(
                    f"all {self.bound} decodes of this session are held by unfinished streams that "
                    "wait for this one; finish or close a stream first, open the bundle with more "
                    "decodes, or use session.fork()"
                )
