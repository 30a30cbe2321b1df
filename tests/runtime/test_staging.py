from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from lopa.runtime.contract import LopaError
from lopa.runtime.staging import check_file, check_output, staged_folder, write_whole

CHILD = """
import sys, time
from pathlib import Path
from lopa.runtime.staging import staged_folder
with staged_folder(Path(sys.argv[1]), force=True) as stage:
    (stage / "manifest.json").write_text("half")
    print("writing", flush=True)
    time.sleep(60)
"""


def contents(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text(encoding="utf-8") for path in folder.iterdir()}


def write_old(out: Path) -> None:
    out.mkdir()
    (out / "old").write_text("whole", encoding="utf-8")


def test_a_new_folder_appears_only_when_complete(tmp_path: Path) -> None:
    out = tmp_path / "deep" / "bundle"
    with staged_folder(out) as stage:
        (stage / "a").write_text("1", encoding="utf-8")
        assert stage.parent == out.parent
        assert not out.exists()
    assert contents(out) == {"a": "1"}
    assert out.stat().st_mode & 0o777 == 0o755
    assert list(out.parent.iterdir()) == [out]


def test_force_replaces_the_folder_as_a_whole(tmp_path: Path) -> None:
    out = tmp_path / "bundle"
    write_old(out)
    with staged_folder(out, force=True) as stage:
        (stage / "new").write_text("1", encoding="utf-8")
        assert contents(out) == {"old": "whole"}
    assert contents(out) == {"new": "1"}
    assert list(tmp_path.iterdir()) == [out]


def test_an_empty_folder_needs_no_force(tmp_path: Path) -> None:
    out = tmp_path / "bundle"
    out.mkdir()
    with staged_folder(out) as stage:
        (stage / "new").write_text("1", encoding="utf-8")
    assert contents(out) == {"new": "1"}


def test_output_that_may_not_be_written(tmp_path: Path) -> None:
    out = tmp_path / "bundle"
    write_old(out)
    with pytest.raises(LopaError, match="is not empty; choose another or add --force"):
        check_output(out, force=False)
    with pytest.raises(LopaError, match="is not empty"), staged_folder(out):
        pytest.fail("never entered")
    file = tmp_path / "file"
    file.write_text("", encoding="utf-8")
    with pytest.raises(LopaError, match="is a file, expected a folder name"):
        check_output(file, force=True)
    with pytest.raises(LopaError, match="cannot write next to"), staged_folder(file / "bundle"):
        pytest.fail("never entered")
    assert contents(out) == {"old": "whole"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bundle", "file"]


@pytest.mark.parametrize("old", [True, False])
def test_a_full_disk_keeps_what_was_there(tmp_path: Path, old: bool) -> None:
    out = tmp_path / "bundle"
    if old:
        write_old(out)

    def build() -> None:
        with staged_folder(out, force=True) as stage:
            (stage / "half").write_text("1", encoding="utf-8")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(stage / "weights.data"))

    with pytest.raises(
        LopaError, match=r"failed at weights.data: No space left .*nothing was kept"
    ):
        build()
    assert out.exists() == old
    assert not old or contents(out) == {"old": "whole"}
    assert list(tmp_path.iterdir()) == [out] * old


def test_other_errors_pass_through_and_clean_up(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), staged_folder(tmp_path / "bundle"):
        raise ZeroDivisionError
    with pytest.raises(KeyboardInterrupt), staged_folder(tmp_path / "bundle"):
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []


def test_a_failed_exchange_brings_the_old_folder_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "bundle"
    write_old(out)
    rename = Path.rename

    def refuse_new(self: Path, target: Path) -> Path:
        if self.suffix == ".partial":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self))
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", refuse_new)
    with pytest.raises(LopaError, match="No space left"), staged_folder(out, force=True) as stage:
        (stage / "new").write_text("1", encoding="utf-8")
    assert contents(out) == {"old": "whole"}
    assert list(tmp_path.iterdir()) == [out]


@pytest.mark.parametrize("old", [True, False])
def test_a_killed_build_leaves_no_half_folder(tmp_path: Path, old: bool) -> None:
    out = tmp_path / "bundle"
    if old:
        write_old(out)
    with subprocess.Popen(
        [sys.executable, "-c", CHILD, str(out)], stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "writing\n"
        child.kill()
        assert child.wait() == -signal.SIGKILL
    assert out.exists() == old
    assert not old or contents(out) == {"old": "whole"}
    left = [path for path in tmp_path.iterdir() if path != out]
    assert all(path.name.startswith(".bundle.") and path.suffix == ".partial" for path in left)


def test_an_output_never_replaces_its_own_source(tmp_path: Path) -> None:
    source = tmp_path / "models" / "one"
    source.mkdir(parents=True)
    for out in (source, tmp_path / "models"):
        with pytest.raises(LopaError, match="would replace its own source"):
            check_output(out, True, source)
    check_output(source / "bundle", True, source)


@pytest.mark.parametrize("dangling", [True, False])
def test_a_link_stays_and_what_it_points_to_is_written(tmp_path: Path, dangling: bool) -> None:
    target = tmp_path / "disk" / "bundle"
    target.parent.mkdir()
    if not dangling:
        write_old(target)
    out = tmp_path / "current"
    out.symlink_to(target)
    with staged_folder(out, force=True) as stage:
        (stage / "new").write_text("1", encoding="utf-8")
        assert stage.parent == target.parent
    assert out.readlink() == target
    assert contents(target) == {"new": "1"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["current", "disk"]
    assert list(target.parent.iterdir()) == [target]


def test_a_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"old")
    link = tmp_path / "link"
    link.symlink_to("file")
    write_whole(link, b"new")
    assert (tmp_path / "file").read_bytes() == b"new"
    assert link.is_symlink()
    with pytest.raises(TypeError):
        write_whole(link, "no bytes")  # type: ignore[arg-type]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "link"]
    assert link.read_bytes() == b"new"


def test_files_that_cannot_be_written_are_told_before_the_work(tmp_path: Path) -> None:
    check_file(tmp_path / "new")
    with pytest.raises(LopaError, match="is a folder, expected the name of a file"):
        check_file(tmp_path)
    with pytest.raises(LopaError, match=r"cannot write .*new: there is no folder missing"):
        check_file(tmp_path / "missing" / "new")
