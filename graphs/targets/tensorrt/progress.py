"""Progress of a TensorRT build as one growing share, and a way to stop it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass
class _Phase:
    parent: str | None
    steps: int
    done: int = 0


class Share:
    """Finished share, 0 to 1, of phases that contain each other; it never goes back."""

    def __init__(self) -> None:
        self._phases: dict[str, _Phase] = {}
        self._reached = 0.0

    def start(self, name: str, parent: str | None, steps: int) -> None:
        """Enter a phase of so many steps inside `parent`."""
        self._phases[name] = _Phase(parent, max(steps, 1))

    def complete(self, name: str, step: int) -> float:
        """Finish step number `step`, from 0, of a phase; returns the share of the whole."""
        phase = self._phases.get(name)
        if phase is None:
            return self._reached
        phase.done = step + 1
        part, seen = 0.0, set()
        place: str | None = name
        while place is not None and place in self._phases and place not in seen:
            seen.add(place)
            phase = self._phases[place]
            part = min((phase.done + (part if len(seen) > 1 else 0.0)) / phase.steps, 1.0)
            place = phase.parent
        self._reached = max(self._reached, part)
        return self._reached

    def finish(self, name: str) -> None:
        """Leave a phase."""
        self._phases.pop(name, None)


def make_monitor(library: Any, report: Callable[[float], None]) -> Any:
    """Return a progress monitor for `library` that reports the finished share, 0 to 1.

    An exception in `report`, Ctrl-C included, stops the build and is kept as `stopped`: it must not
    pass through the library's own frames. The library may call from several threads.
    """

    class Monitor(library.IProgressMonitor):  # type: ignore[misc]
        def __init__(self) -> None:
            library.IProgressMonitor.__init__(self)
            self.stopped: BaseException | None = None
            self._share = Share()
            self._lock = threading.Lock()

        def _guarded(self, call: Callable[[], object]) -> bool:
            try:
                with self._lock:
                    call()
            except BaseException as error:
                self.stopped = error
            return self.stopped is None

        def phase_start(self, phase_name: str, parent_phase: str | None, num_steps: int) -> None:
            self._guarded(lambda: self._share.start(phase_name, parent_phase, num_steps))

        def step_complete(self, phase_name: str, step: int) -> bool:
            return self._guarded(lambda: report(self._share.complete(phase_name, step)))

        def phase_finish(self, phase_name: str) -> None:
            self._guarded(lambda: self._share.finish(phase_name))

    return Monitor()
