"""Saves the outputs of both sides step by step, as one file that polygraphy loads."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from polygraphy.json import to_json

HEAD, NEXT, TAIL = '{"lst": [', ", ", '], "polygraphy_class": "RunResults"}\n'


@contextlib.contextmanager
def saved_outputs(path: Path) -> Iterator[Callable[[Any], None]]:
    """Yield a function that takes the `RunResults` of one step at a time, and keeps none of them.

    `path` gets the file, in the format of `RunResults.save`, when all steps are there; what fails
    before leaves it as it was.
    """
    path = Path(os.path.realpath(path))  # a symbolic link stays
    with tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as folder:
        # The format lists the steps of one side after those of the other: a part of its own each.
        parts: dict[str, IO[str]] = {}
        with contextlib.ExitStack() as opened:

            def add(run: Any) -> None:
                for name, (iteration,) in run.items():
                    first = name not in parts
                    if first:
                        part = (Path(folder) / str(len(parts))).open("w+", encoding="utf-8")
                        parts[name] = opened.enter_context(part)
                    parts[name].write(f"{'' if first else NEXT}{to_json(iteration)}")

            yield add
            draft = Path(folder) / path.name
            with draft.open("w", encoding="utf-8") as file:
                for index, (name, part) in enumerate(parts.items()):
                    file.write(f"{NEXT if index else HEAD}[{json.dumps(name)}, [")
                    part.seek(0)
                    shutil.copyfileobj(part, file)
                    file.write("]]")
                file.write(TAIL)
        draft.replace(path)
