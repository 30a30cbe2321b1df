from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from lopa.runtime.contract import LopaError
from lopa.tools.compare.feeds import save_feeds
from lopa.tools.compare.output_file import check_output_file
from lopa.tools.paths import Named, Use, check_paths


@pytest.mark.parametrize("force", [False, True])
def test_new_names_and_earlier_outputs_are_taken(tmp_path: Path, force: bool) -> None:
    check_output_file(tmp_path / "new.json", force)
    save_feeds([{"x": np.arange(3)}], tmp_path / "old.json")
    check_output_file(tmp_path / "old.json", force)
    (tmp_path / "manifest.json").write_text("{}")
    check_output_file(tmp_path / "old.json", force)
    check_output_file(tmp_path / "new.json", force)


def test_other_files_are_replaced_by_force_alone(tmp_path: Path) -> None:
    path = tmp_path / "settings.json"
    for contents in ("", '{"confidence": 0.9}', "no JSON"):
        path.write_text(contents)
        with pytest.raises(LopaError, match=r"settings.json was not written by .* --force"):
            check_output_file(path, force=False)
        check_output_file(path, force=True)


@pytest.mark.parametrize("name", ["tiny_bundle", "tiny_model", "tiny_checkpoint"])
@pytest.mark.parametrize("force", [False, True])
def test_files_of_bundles_and_models_are_never_replaced(
    request: pytest.FixtureRequest, tmp_path: Path, name: str, force: bool
) -> None:
    folder: Path = request.getfixturevalue(name)
    files = list(folder.glob("*.json"))
    assert len(files) >= 2
    for file in files:
        link = tmp_path / file.name
        link.symlink_to(file)
        for path in (file, link):
            with pytest.raises(LopaError, match="is a file of a bundle or model; choose another"):
                check_output_file(path, force)


def test_what_cannot_be_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "folder.json").mkdir()
    os.mkfifo(tmp_path / "pipe.json")
    (tmp_path / "link.json").symlink_to(tmp_path / "missing" / "x.json")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "model.json").write_text("{}")
    for name, message in (
        ("x", r"ends in \.json"),
        ("folder.json", "is a folder"),
        ("pipe.json", "was not written by"),
        ("missing/x.json", "there is no folder missing"),
        ("link.json", "there is no folder missing"),
        ("model/manifest.json", "is a file of a bundle or model"),
    ):
        with pytest.raises(LopaError, match=message):
            check_output_file(tmp_path / name, force=True)


def test_two_flags_may_not_name_one_file(tmp_path: Path) -> None:
    path, link, other = (tmp_path / name for name in ("a.json", "b.json", "c.json"))
    path.touch()
    link.symlink_to(path)
    saved = Named("--save-inputs", path, Use.FILE)
    check_paths([saved, Named("--save-outputs", other, Use.FILE)])
    check_paths([])
    with pytest.raises(LopaError, match=r"^--save-inputs and --save-outputs .* are the same"):
        check_paths([saved, Named("--save-outputs", link, Use.FILE)])
