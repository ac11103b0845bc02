"""A disk that is full: streams can be deleted, and when there is room again, appends go on."""

import errno
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from purgatory.streams.storage import sqlite
from purgatory.streams.storage.database import StorageUnavailable
from purgatory.streams.storage.sqlite import RESERVED, Reserve, WritingDatabase
from tests.streams.serving import served

BINARY = {"Content-Type": "application/octet-stream"}
MEBIBYTE = 1024 * 1024


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small disk of its own."""
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=80m", "tmpfs", str(disk)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("a file system cannot be mounted here")
    try:
        yield disk
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def fill(file: Path) -> None:
    with file.open("wb", buffering=0) as opened, pytest.raises(OSError, match="No space"):
        while opened.write(bytes(4096)):
            pass


def append(http: httpx.Client, name: str, size: int = MEBIBYTE) -> int:
    return http.post(f"/v1/stream/{name}", headers=BINARY, content=bytes(size)).status_code


def append_until_full(http: httpx.Client) -> list[str]:
    """Create streams until the disk is full. Returns their names."""
    names: list[str] = []
    while True:
        name = f"{len(names)}"
        status = http.put(f"/v1/stream/{name}", headers=BINARY, content=bytes(MEBIBYTE)).status_code
        if status == 507:
            return names
        assert status == 201
        names.append(name)


def until_appended(http: httpx.Client, name: str) -> None:
    """Return when there is room again: the time-out of the test is the bound."""
    while (status := append(http, name)) == 507:
        time.sleep(0.05)
    assert status == 204


@pytest.mark.parametrize("is_filled", [False, True], ids=["by the server", "by another program"])
def test_streams_are_deleted_on_a_full_disk_and_then_appends_go_on(disk: Path, is_filled: bool) -> None:
    with served(data=str(disk / "data")) as (_, http):
        names = append_until_full(http)
        assert len(names) > 15
        if is_filled:
            fill(disk / "other")
        assert [append(http, name) for name in names[:3]] == [507] * 3
        for name in names[:-3]:
            assert http.delete(f"/v1/stream/{name}").status_code == 204
            assert http.get(f"/v1/stream/{name}").status_code == 404
        if is_filled:
            (disk / "other").unlink()
        until_appended(http, names[-1])
        ends = [int(http.head(f"/v1/stream/{name}").headers["stream-next-offset"][-16:]) for name in names[-2:]]
        assert ends == [MEBIBYTE, 2 * MEBIBYTE]
        assert (disk / "data" / "reserve").stat().st_size == RESERVED
        assert len(append_until_full(http)) > 5


def test_a_server_starts_on_a_full_disk_and_deletes(disk: Path) -> None:
    with served(data=str(disk / "data")) as (_, http):
        names = append_until_full(http)
    fill(disk / "other")
    with served(data=str(disk / "data")) as (_, http):
        assert append(http, names[0], 1) == 507
        assert [http.delete(f"/v1/stream/{name}").status_code for name in names] == [204] * len(names)


def test_a_large_append_leaves_room_for_its_way_from_the_log_to_the_file(disk: Path) -> None:
    with served(data=str(disk / "data"), max_body=64 * MEBIBYTE) as (_, http):
        http.put("/v1/stream/a", headers=BINARY)
        assert append(http, "a", 40 * MEBIBYTE) == 507
        assert append(http, "a", 20 * MEBIBYTE) == 204
        assert append(http, "a", 20 * MEBIBYTE) == 507
        assert http.delete("/v1/stream/a").status_code == 204


def test_new_subscriptions_are_refused_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    subscription = "/v1/stream/__ds/subscriptions/s"
    with served(data=str(tmp_path)) as (_, http):
        monkeypatch.setattr(sqlite, "_MARGIN", 2**62)
        pulls = {"type": "pull-wake", "pattern": "a*", "wake_stream": "wakes"}
        assert http.put(subscription, json=pulls).status_code == 507
        monkeypatch.undo()
        assert http.put(subscription, json=pulls).status_code == 201
        monkeypatch.setattr(sqlite, "_MARGIN", 2**62)
        assert http.delete(subscription).status_code == 204


def test_a_reserve_that_finds_no_room_is_not_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no")

    assert not Reserve(tmp_path / "none" / "reserve").make()
    reserve = Reserve(tmp_path / "reserve")
    with monkeypatch.context() as patch:
        patch.setattr("os.posix_fallocate", fail)
        assert not reserve.make()
    assert (tmp_path / "reserve").stat().st_size == 0
    assert not reserve.release()
    monkeypatch.delattr("os.posix_fallocate", raising=False)
    assert reserve.make()
    assert Reserve(tmp_path / "reserve").is_made


def test_a_file_system_that_does_not_say_what_is_free_has_no_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reserve = Reserve(tmp_path / "reserve")
    assert 0 < reserve.free() < sys.maxsize
    monkeypatch.setattr("os.statvfs", lambda path: os.statvfs_result([4096, 4096, *[0] * 8]))
    assert reserve.free() == sys.maxsize


def test_a_database_that_cannot_be_opened_releases_the_reserve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: WritingDatabase) -> None:
        raise StorageUnavailable("no room for the index of the log")

    monkeypatch.setattr(WritingDatabase, "_prepare", fail)
    with pytest.raises(StorageUnavailable):
        WritingDatabase(tmp_path / "streams.sqlite")  # there is no reserve yet
    Reserve(tmp_path / "reserve").make()
    with pytest.raises(StorageUnavailable):
        WritingDatabase(tmp_path / "streams.sqlite")
    assert not Reserve(tmp_path / "reserve").is_made
