"""The timing cache of a build, against a double of the library."""

from __future__ import annotations

from pathlib import Path

import pytest
from lopa.runtime.contract import LopaError

from .builds import build, warnings_of
from .recording_library import Flag, Library


class TestTimingCache:
    def test_is_read_and_written_back(
        self, library: Library, tiny_model: Path, tmp_path: Path
    ) -> None:
        file = tmp_path / "timing.cache"
        build(tiny_model, tmp_path / "first", timing_cache=file)
        assert file.read_bytes() == b"+measured"
        build(tiny_model, tmp_path / "second", timing_cache=file, strict_timing_cache=True)
        assert file.read_bytes() == b"+measured+measured"
        assert library.config.flags == {Flag.ERROR_ON_TIMING_CACHE_MISS}

    @pytest.mark.parametrize("call", ["create_timing_cache", "set_timing_cache"])
    def test_that_does_not_serve_is_replaced_with_a_warning(
        self, library: Library, tiny_model: Path, tmp_path: Path, call: str
    ) -> None:
        file = tmp_path / "timing.cache"
        file.write_bytes(b"of another GPU")
        library.fail[call] = "mismatch"
        warnings = warnings_of(tiny_model, tmp_path / "bundle", timing_cache=file)
        assert warnings == [
            f"timing cache {file} is not of this library and GPU: kernels are timed again and it "
            "is replaced"
        ]
        assert file.read_bytes() == b"+measured"

    def test_that_does_not_serve_is_an_error_when_strict(
        self, library: Library, tiny_model: Path, tmp_path: Path
    ) -> None:
        file = tmp_path / "timing.cache"
        file.write_bytes(b"of another GPU")
        library.fail["set_timing_cache"] = "mismatch"
        with pytest.raises(LopaError, match="is not of this library and GPU; remove it and build"):
            build(tiny_model, tmp_path / "b", timing_cache=file, strict_timing_cache=True)
        assert file.read_bytes() == b"of another GPU"
        assert [path.name for path in tmp_path.iterdir()] == ["timing.cache"]

    def test_that_cannot_be_written_does_not_cost_the_engine(
        self, library: Library, tiny_model: Path, tmp_path: Path
    ) -> None:
        file = tmp_path / "timing.cache"
        library.during_build = file.mkdir
        warnings = warnings_of(tiny_model, tmp_path / "bundle", timing_cache=file)
        assert warnings == [f"timing cache {file} is not kept: Is a directory"]
        assert sorted(path.name for path in tmp_path.iterdir()) == ["bundle", "timing.cache"]
        with pytest.raises(LopaError, match=r"timing\.cache is a folder, expected the name"):
            build(tiny_model, tmp_path / "other", timing_cache=file)

    def test_of_a_failed_build_is_not_written(
        self, library: Library, tiny_model: Path, tmp_path: Path
    ) -> None:
        library.fail["build"] = "no kernel"
        with pytest.raises(LopaError):
            build(tiny_model, tmp_path / "bundle", timing_cache=tmp_path / "timing.cache")
        assert list(tmp_path.iterdir()) == []
