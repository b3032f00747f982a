"""Files are complete or absent."""

import os

import pytest

from semioffline.files import write_atomically


def test_a_file_is_replaced_as_a_whole(tmp_path):
    path = tmp_path / "result.json"
    write_atomically(path, "old")
    write_atomically(path, "né\nw")
    assert path.read_text(encoding="utf-8") == "né\nw"
    assert list(tmp_path.iterdir()) == [path]


def test_a_write_that_fails_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "result.json"
    write_atomically(path, "old")

    def fail(descriptor: int) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="no space left"):
        write_atomically(path, "new")
    assert path.read_text(encoding="utf-8") == "old"
