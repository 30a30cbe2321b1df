"""The command line `lopa`: finds the command, runs it, turns user errors into one line.

A command is a module of `lopa.tools.commands` named like it. Its docstring is the help: the first
line in the list of commands, the rest above the command's own flags. It offers

    add_arguments(parser)   adds its flags (`-v` and `-q` are there already)
    run(args) -> int        does the work and returns the exit status

and imports at module level nothing that needs NumPy, torch or an engine library: the list of
commands must come up at once. Flags of decode settings are made from the declarations beside the
strategies, which import NumPy. Raise LopaError for what the user can mend.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import importlib
import io
import os
import signal
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from types import FrameType
from typing import Any, NoReturn, TextIO

from .. import __version__
from ..runtime.contract import LopaError
from ..runtime.targets import TARGETS
from .paths import check_paths, named_paths

COMMANDS = (
    "export",
    "calibrate",
    "build",
    "generate",
    "inspect",
    "doctor",
    "bench",
    "eval",
    "compare",
    "tune",
)

USER_ERROR, WRONG_USAGE, INTERRUPTED, CLOSED_PIPE = 1, 2, 130, 141

# Errors of a write that went through an open file, which has no name then.
FULL = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT, errno.EIO)

# Import name of a library -> the extra that brings it.
EXTRAS = {
    **{row.library: row.extra for row in TARGETS.values()},
    "torch": "export",
    "safetensors": "export",
    "ml_dtypes": "export",
    "onnx": "export",
    "onnx_ir": "export",
    "onnxscript": "export",
    "onnx_graphsurgeon": "export",
    "matplotlib": "report",
    "polygraphy": "parity",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status."""
    if sys.stderr is None:  # closed by the caller, as standard output may be
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115  # for as long as the process lives
    if sys.stdout is None:
        return report_error(LopaError("standard output is closed; send it to a file or /dev/null"))
    for stream in (sys.stdout, sys.stderr):
        _use_utf8(stream)
    try:
        try:
            return _run(list(sys.argv[1:] if argv is None else argv))
        finally:
            sys.stdout.flush()
    except BrokenPipeError:  # whoever read our output has gone
        _discard_output()
        return CLOSED_PIPE
    except OSError as error:
        if error.filename is not None or error.errno not in FULL:
            raise
        _discard_output()
        return report_error(LopaError(f"cannot write the output: {error.strerror}"))


def _run(arguments: list[str]) -> int:
    # Only the command that runs is imported; for the help all of them are, without their flags.
    named = bool(arguments) and arguments[0] in COMMANDS
    parser = build_parser(arguments[:1]) if named else build_parser(flags=False)
    args, unknown = parser.parse_known_args(arguments)
    if unknown:
        parser.prog = f"lopa {args.command}"
        parser.error(f"unknown arguments: {' '.join(unknown)}")
    before = signal.signal(signal.SIGTERM, _stop)
    try:
        with _warning_lines():
            check_paths(named_paths(args.parser, args))
            status: int = args.run(args)
        return status
    except LopaError as error:
        return report_error(error, args.verbose)
    except ModuleNotFoundError as error:
        extra = EXTRAS.get((error.name or "").partition(".")[0].replace("-", "_"))
        if extra is None:
            raise
        return report_error(
            LopaError(
                f"lopa {args.command} needs {error.name}, which is not installed; "
                f"install it with: pip install 'lopa[{extra}]'"
            )
        )
    except OSError as error:  # a file that cannot be read or written
        if error.filename is None:
            raise
        return report_error(LopaError(f"{error.filename}: {error.strerror}"), args.verbose)
    except KeyboardInterrupt as stop:
        return report_interrupt(stop)
    finally:
        signal.signal(signal.SIGTERM, before)


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line, like all others."""

    def error(self, message: str) -> NoReturn:
        """Leave with status 2 and say where the usage is."""
        self.exit(WRONG_USAGE, f"lopa: error: {message}; see {self.prog} --help\n")


class Paragraphs(argparse.HelpFormatter):
    """Help whose description keeps its paragraphs, each filled to the terminal's width."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "\n\n".join(
            super(Paragraphs, self)._fill_text(paragraph, width, indent)
            for paragraph in text.split("\n\n")
        )


def build_parser(
    commands: Iterable[str] = COMMANDS, *, flags: bool = True
) -> argparse.ArgumentParser:
    """Return the parser of the given commands, with or without their own flags."""
    parser = Parser(
        prog="lopa",
        description="Compile diffusion language models into saved engines and decode with "
        "Lookahead Parallel Decoding.",
        epilog="Exit status: 0 done, 1 an error you can mend (one line says how), 2 wrong usage, "
        "130 interrupted.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"lopa {__version__}")
    found = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name in commands:
        module = importlib.import_module(f".commands.{name}", __package__)
        summary, _, details = (module.__doc__ or "").partition("\n\n")
        command = found.add_parser(
            name,
            help=summary,
            description=f"{summary}\n\n{details}".strip(),
            formatter_class=Paragraphs,
            allow_abbrev=False,
        )
        talk = command.add_mutually_exclusive_group()
        talk.add_argument("-v", "--verbose", action="store_true", help="say what caused an error")
        talk.add_argument("-q", "--quiet", action="store_true", help="results and errors only")
        if flags:
            module.add_arguments(command)
        command.set_defaults(run=module.run, parser=command)
    return parser


def report_error(error: LopaError, verbose: bool = False) -> int:
    """Print an error as one line; `verbose` adds one line per cause."""
    with contextlib.suppress(OSError):  # standard error may be full or gone, too
        print("lopa: error:", _line(error), file=sys.stderr)
    cause = error.__cause__
    while verbose and cause is not None:
        print(f"  caused by {type(cause).__name__}:", _line(cause), file=sys.stderr)
        cause = cause.__cause__
    return USER_ERROR


def report_interrupt(stop: KeyboardInterrupt) -> int:
    """Say that the command was interrupted and, where it is `resumable`, how it goes on."""
    with contextlib.suppress(OSError):
        print("; ".join(["lopa: interrupted", *map(str, stop.args)]), file=sys.stderr)
    return INTERRUPTED


@contextlib.contextmanager
def _warning_lines() -> Iterator[None]:
    """Show our own warnings like errors, in one line; those of libraries stay as they are."""
    with warnings.catch_warnings():
        show = warnings.showwarning

        def show_ours(
            message: Warning | str, category: type[Warning], *where: Any, **more: Any
        ) -> None:
            if category.__module__.startswith(str(__package__).partition(".")[0]):
                print("lopa: warning:", " ".join(str(message).splitlines()), file=sys.stderr)
            else:
                show(message, category, *where, **more)

        warnings.showwarning = show_ours
        yield


def _use_utf8(stream: TextIO) -> None:
    """Write UTF-8 whatever the locale; a terminal that cannot show a character gets another."""
    if isinstance(stream, io.TextIOWrapper):
        encoding = stream.encoding if stream.isatty() else "utf-8"
        with contextlib.suppress(OSError):  # what it goes to has changed since it was opened
            stream.reconfigure(encoding=encoding, errors="replace")


def _discard_output() -> None:
    """Send what is still buffered nowhere, so that nothing fails on it at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _line(error: BaseException) -> str:
    return " ".join(str(error).splitlines())


def _stop(number: int, frame: FrameType | None) -> NoReturn:
    """Leave through the clean-up of whatever runs, so that nothing half-written stays."""
    raise SystemExit(128 + number)
