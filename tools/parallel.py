"""Decoding several prompts at the same time: the flag, its threads, and results in order."""

from __future__ import annotations

import argparse
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

from .arguments import positive

if TYPE_CHECKING:
    from ..runtime.session import Session

Item = TypeVar("Item")
Result = TypeVar("Result")
GoOn = Callable[[], None]


class StoppedError(Exception):
    """Raised in a thread whose work nobody waits for any more."""


def add_parallel_flag(parser: argparse.ArgumentParser) -> None:
    """Add --parallel."""
    parser.add_argument(
        "--parallel",
        metavar="N",
        type=positive,
        default=1,
        help="decode N prompts at the same time with one engine (default 1); without --threads "
        "the engine then gets a number of threads of cores / N; seconds of prompts overlap",
    )


def open_parallel(
    args: argparse.Namespace, parallel: int, open_session: Callable[..., Session]
) -> Session:
    """Open a session for so many decodes at the same time; sets the threads left to us."""
    if parallel == 1:
        return open_session(args)
    if not args.threads:
        args.threads = max(1, _cores() // parallel)
    return open_session(args).fork(parallel)


def in_order(
    parallel: int, work: Callable[[Item, GoOn | None], Result], items: Iterable[Item]
) -> Iterator[Result]:
    """Yield what `work` makes of each item, in their order, from `parallel` threads.

    Work is given a function to call now and then, which ends it when the rest is not wanted any
    more: after an error, an interrupt, or when the iterator is closed. One at a time is done in
    this thread, and is given None.
    """
    if parallel == 1:
        for item in items:
            yield work(item, None)
        return
    stopped = threading.Event()

    def go_on() -> None:
        if stopped.is_set():
            raise StoppedError

    with ThreadPoolExecutor(parallel) as executor:
        futures = [executor.submit(work, item, go_on) for item in items]
        try:
            for future in futures:
                yield future.result()
        finally:
            stopped.set()
            executor.shutdown(wait=False, cancel_futures=True)


def _cores() -> int:
    """Cores that this process may use, where the system can tell."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:
        return os.cpu_count() or 1
