"""A program of one decode, for engines with nothing to share."""

from __future__ import annotations

from ..contract import Instance, LopaError
from .protocol import DecodeState
from .status import EngineStatus


class SingleState:
    """The program of one given state (see `protocol.Program`)."""

    def __init__(self, state: DecodeState) -> None:
        self._state, self._given = state, False

    @property
    def instances(self) -> tuple[Instance, ...]:
        """Shapes the state can run."""
        return self._state.instances

    def decode_state(self) -> DecodeState:
        """Return the state; raises LopaError the second time."""
        if self._given:
            raise LopaError("this engine decodes one prompt at a time; open it with decodes=1")
        self._given = True
        return self._state

    def status(self) -> EngineStatus:
        """Return what the state says of itself."""
        return self._state.status()
