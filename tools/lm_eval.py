"""lm-evaluation-harness with bundles as models: `python -m lopa.tools.lm_eval --model lopa ...`.

The harness finds no models of other packages by itself: this registers one, then runs the
harness's own command line with all its commands and flags.
"""

from __future__ import annotations

import sys

from ..runtime.contract import LopaError
from .cli import report_error, report_interrupt


def main() -> int:
    """Run the harness on `sys.argv`; a LopaError is one line and status 1, an interrupt 130."""
    try:
        from lm_eval.__main__ import cli_evaluate

        from .eval import harness_model  # noqa: F401  # registers the model
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("lm_eval", "tqdm"):
            raise
        return report_error(
            LopaError("the harness is not installed; install it with: pip install 'lopa[lm-eval]'")
        )
    try:
        cli_evaluate()
    except LopaError as error:
        return report_error(error)
    except KeyboardInterrupt as stop:
        return report_interrupt(stop)
    return 0


if __name__ == "__main__":
    sys.exit(main())
