"""The file in which TensorRT for RTX keeps the kernels it compiled for one GPU."""

from __future__ import annotations

import warnings
from pathlib import Path

from ...staging import write_whole
from ..status import EngineWarning


class RuntimeCacheFile:
    """A file that is replaced as a whole: a reader sees the old or the new one, never a part.

    Processes that save at the same time each leave a complete file; the last one stays.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._kept = b""

    @classmethod
    def beside(cls, bundle: Path) -> RuntimeCacheFile:
        """The default: next to the bundle's folder, which stays as it was built."""
        folder = bundle.resolve()
        return cls(folder.with_name(f"{folder.name}.runtime-cache"))

    def load(self) -> bytes:
        """Contents, or nothing where there is no file."""
        try:
            self._kept = self.path.read_bytes()
        except OSError:
            self._kept = b""
        return self._kept

    def save(self, data: bytes) -> None:
        """Replace the file if `data` is new; a folder that cannot be written is a warning."""
        if data == self._kept:
            return
        try:
            write_whole(self.path, data)
        except OSError as error:
            warnings.warn(
                f"compiled kernels are not kept: {self.path}: {error.strerror}; name a file that "
                "can be written with --runtime-cache",
                EngineWarning,
                stacklevel=2,
            )
        self._kept = data
