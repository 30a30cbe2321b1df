"""Keeps polygraphy's log off the standard output, and off the terminal unless asked for."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

from polygraphy.exception import PolygraphyException
from polygraphy.logger import G_LOGGER

from ...runtime.contract import LopaError


@contextlib.contextmanager
def polygraphy_log(shown: bool) -> Iterator[None]:
    """Send the log to standard error when `shown`, else nowhere; its errors become LopaError."""
    severity = G_LOGGER.INFO if shown else G_LOGGER.CRITICAL + 1
    with G_LOGGER.verbosity(severity), contextlib.redirect_stdout(sys.stderr):
        try:
            yield
        except PolygraphyException as error:
            raise LopaError(f"polygraphy: {error}") from error
