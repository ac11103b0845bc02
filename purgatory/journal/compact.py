"""Joins the small files of a journal. At every moment each row is found once, also if the work is killed anywhere.

    JOURNAL/date=D/instance=I/NAME.parquet                   small files, as a journal writes them
    JOURNAL/_compacted/data/date=D/instance=I/ID.parquet     joined files
    JOURNAL/_compacted/manifests/TIME-ID.json                a line for each joined file: its name, those it replaces

A joined file counts when a manifest names it, and from then on the files that it replaces do not count. A manifest
appears whole, by a rename or by its upload, and is written after the joined files are. So one step changes all: before
it a reader takes the small files, after it the joined one. The small files stay for `keep` seconds, for readers that
have begun before, and are deleted then. Another `keep` seconds later, when no reader has a list with their names any
more, the manifest forgets them. The age of a manifest is the time since it was written: it is written anew before files
are deleted.

A reader lists the files first, and reads the manifests then: of a file that was in its list and deleted since, the
manifest is there. If two processes join the same file at the same time, the manifest whose name comes first wins.

A stream of the pipeline reads the small files alone, as the names of the directories above begin with an underscore: so
a joined file is no news to it. The days of `keep` are the time that it has for a file. Spark's streams do not look at
files that are more than a week older than the newest, so eight days take nothing from one that is running.

Files of today, in UTC, are left alone, and so are large ones. Files of different schemas are not joined.
"""

import json
import os
import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from purgatory.journal.files import sync

__all__ = ["DATA", "KEEP", "MANIFESTS", "Compacted", "Entry", "compact", "counting", "current_files"]

DATA: Final = "_compacted/data"
MANIFESTS: Final = "_compacted/manifests"

KEEP: Final = 8 * 86_400.0
"""Seconds."""

_SIZE: Final = 128 * 1024 * 1024
"""Bytes of small files after which the next joined file begins."""

_LARGE: Final = _SIZE // 4
"""Bytes from which on a file is not small."""

_ABANDONED: Final = 86_400.0
"""Seconds after which an unfinished file is of a run that was killed."""

_ROWS: Final = 100_000
"""Rows of a row group."""

_DAY: Final = re.compile(r"date=\d{4}-\d{2}-\d{2}")
_SMALL: Final = re.compile(r"(date=[^/]+/instance=[^/]+)/([^/._][^/]*\.parquet)")

Say: TypeAlias = Callable[[str], object]


class Entry(NamedTuple):
    """A line of a manifest."""

    file: str
    """A joined file, from `JOURNAL/_compacted/data` on."""
    replaces: tuple[str, ...]
    """The names of the files that it replaces, which are or were in the same directory of the journal."""

    @property
    def replaced(self) -> Iterator[str]:
        """The same files, from `JOURNAL` on."""
        return (f"{self.file.rpartition('/')[0]}/{name}" for name in self.replaces)


@dataclass(frozen=True, slots=True)
class Compacted:
    """The work of a run."""

    joined: int
    """Files that were joined."""
    files: int
    """The files that they became."""
    deleted: int
    """Files that had been joined at least `keep` seconds before, and were deleted."""


def counting(manifests: Iterable[Sequence[Entry]]) -> tuple[list[str], set[str]]:
    """The joined files that count, and the files that do not because of them. The manifests are in order of names."""
    joined: list[str] = []
    replaced: set[str] = set()
    for entries in manifests:
        for entry in entries:
            if replaced.isdisjoint(entry.replaced):
                joined.append(entry.file)
                replaced.update(entry.replaced)
    return joined, replaced


def current_files(journal: str) -> list[str]:
    """The files of a journal that have each row once, as paths or as keys of its bucket, for DuckDB or pyarrow.

    They stay for as long as `compact` keeps files.
    """
    place = _place(journal)
    small = [path for day in place.days() for path, _ in place.small(day)]  # listed first: see above
    joined, replaced = counting(place.manifests().values())
    return [place.path(path) for path in small if path not in replaced] + [place.path(DATA, path) for path in joined]


def compact(
    journal: str, *, keep: float = KEEP, now: Callable[[], float] = time.time, say: Say = lambda _: None
) -> Compacted:
    """Join the small files of each day before today and instance, and delete those that were joined `keep` seconds ago.

    `journal` is a directory, or a URL of pyarrow's file systems. `say` is called with a line for each day, and for each
    file that cannot be read, which stays as it is. Raises `ValueError` for a negative `keep`, and `OSError` for a
    directory that does not exist or cannot be written to.
    """
    if not keep >= 0:
        raise ValueError(f"keep must be a number of seconds from 0, not {keep!r}")
    place = _place(journal)
    deleted = _tidy(place, keep, now())
    joined = files = 0
    today = f"date={datetime.fromtimestamp(now(), UTC):%Y-%m-%d}"
    for day in place.days():
        if day < today:
            entries = _join_day(place, day, say)
            # Another process may have joined or deleted files meanwhile.
            _, replaced = counting(place.manifests().values())
            entries = [entry for entry in entries if replaced.isdisjoint(entry.replaced)]
            if entries:
                place.publish(f"{datetime.fromtimestamp(now(), UTC):%Y%m%dT%H%M%SZ}-{uuid4().hex}.json", entries)
                count = sum(len(entry.replaces) for entry in entries)
                say(f"{day}: {count:,} files joined into {len(entries):,}")
                joined, files = joined + count, files + len(entries)
    return Compacted(joined, files, deleted)


@dataclass(frozen=True, slots=True)
class _Place:
    """The directory of a journal on a file system."""

    system: Any
    root: str
    known: dict[str, list[Entry]]
    """The manifests that were read."""

    def path(self, *parts: str) -> str:
        return "/".join((self.root, *parts))

    def contents(self, directory: str, recursive: bool = False) -> list[fs.FileInfo]:
        """The files and directories in a directory, in order of their names. A missing one is empty."""
        selector = fs.FileSelector(self.path(directory), allow_not_found=True, recursive=recursive)
        found: list[fs.FileInfo] = self.system.get_file_info(selector)
        return sorted(found, key=lambda info: info.path)

    def days(self) -> list[str]:
        """The directories of the days."""
        infos = self.system.get_file_info(fs.FileSelector(self.root))
        return sorted(info.base_name for info in infos if _DAY.fullmatch(info.base_name))

    def small(self, day: str) -> list[tuple[str, int]]:
        """The files of a day that a journal has written, from the root on, and their sizes."""
        named = [(info.path[len(self.root) + 1 :], info.size) for info in self.contents(day, recursive=True)]
        return [(path, size) for path, size in named if _SMALL.fullmatch(path)]

    def manifests(self) -> dict[str, list[Entry]]:
        """The manifests by name, in order of their names."""
        found = {}
        for info in self.contents(MANIFESTS):
            if info.base_name in self.known:
                found[info.base_name] = self.known[info.base_name]
            elif info.base_name.endswith(".json"):
                with self.system.open_input_stream(info.path) as stream:
                    lines = stream.read().decode().splitlines()
                found[info.base_name] = [
                    Entry(each["file"], tuple(each["replaces"])) for each in map(json.loads, lines)
                ]
        self.known.update(found)
        return found

    def publish(self, name: str, entries: Sequence[Entry]) -> None:
        """Write a manifest, or replace it: whole or not at all."""
        unfinished = self.path(MANIFESTS, f".{name}.unfinished")
        self.system.create_dir(self.path(MANIFESTS))
        with self.system.open_output_stream(unfinished) as stream:
            stream.write("".join(f"{json.dumps(entry._asdict())}\n" for entry in entries).encode())
        self.sync(unfinished)
        self.system.move(unfinished, self.path(MANIFESTS, name))
        self.known[name] = list(entries)

    def sync(self, path: str) -> None:
        """Flush a file to the disk, if it is on one."""
        if isinstance(self.system, fs.LocalFileSystem):
            sync(Path(path))


def _place(journal: str) -> _Place:
    if re.match(r"[a-z][a-z0-9+.-]*:", journal):
        system, root = fs.FileSystem.from_uri(journal)
    else:
        system, root = fs.LocalFileSystem(), os.path.abspath(journal)
    if system.get_file_info(root).type != fs.FileType.Directory:
        raise NotADirectoryError(f"there is no directory {journal}")
    return _Place(system, root.rstrip("/"), {})


def _tidy(place: _Place, keep: float, now: float) -> int:
    """Delete the files that need not be kept any longer. Returns the number of replaced ones."""
    deleted = 0
    ages = {info.base_name: now - info.mtime_ns / 1e9 for info in place.contents(MANIFESTS)}
    manifests = place.manifests()
    counted, _ = counting(manifests.values())
    data = {
        info.path.removeprefix(place.path(DATA, "")): now - info.mtime_ns / 1e9
        for info in place.contents(DATA, recursive=True)
        if info.is_file
    }
    joined = set(counted)
    for name, entries in manifests.items():
        valid = [entry for entry in entries if entry.file in joined]
        there = _existing(place, [entry for entry in valid if entry.file in data]) if ages[name] > keep else []
        if ages[name] > keep and not there:  # since the manifest was written, for so long
            valid = [entry._replace(replaces=()) for entry in valid]
        if there or valid != entries:
            place.publish(name, valid)
        for path in there:
            place.system.delete_file(place.path(path))
        deleted += len(there)
    # A run that was killed has left the others.
    for file, age in data.items():
        if file not in joined and age > max(keep, _ABANDONED):
            place.system.delete_file(place.path(DATA, file))
    for name, age in ages.items():
        if name not in manifests and age > max(keep, _ABANDONED):
            place.system.delete_file(place.path(MANIFESTS, name))
    return deleted


def _existing(place: _Place, entries: Iterable[Entry]) -> list[str]:
    """The files that the entries replace, and that are still there."""
    replaced = [path for entry in entries for path in entry.replaced]
    days = {path.partition("/")[0] for path in replaced}
    there = {path for day in days for path, _ in place.small(day)}
    return [path for path in replaced if path in there]


def _join_day(place: _Place, day: str, say: Say) -> list[Entry]:
    """Write the joined files of a day. They do not count yet."""
    small = place.small(day)
    _, replaced = counting(place.manifests().values())
    names: dict[str, list[str]] = defaultdict(list)
    for path, size in small:
        if size < _LARGE and path not in replaced:
            directory, _, name = path.rpartition("/")
            names[directory].append(name)
    return [entry for directory, some in names.items() if len(some) > 1 for entry in _join(place, directory, some, say)]


def _join(place: _Place, directory: str, names: Iterable[str], say: Say) -> Iterator[Entry]:
    """Join the files of a directory, those of each schema by themselves."""
    open_files: dict[pa.Schema, _Joining] = {}
    place.system.create_dir(place.path(DATA, directory))
    for name in names:
        path = place.path(directory, name)
        try:
            with place.system.open_input_file(path) as opened, pq.ParquetFile(opened) as parquet:
                rows, size = parquet.read(), opened.size()
        except (pa.ArrowException, OSError) as error:
            say(f"{path} cannot be read, and stays as it is: {str(error).splitlines()[0]}")
            continue
        schema = rows.schema.remove_metadata()
        if schema not in open_files:
            open_files[schema] = _Joining(place, f"{directory}/{uuid4().hex}.parquet", schema)
        joining = open_files[schema]
        joining.add(name, rows.replace_schema_metadata(), size)
        if joining.size >= _SIZE:
            yield from open_files.pop(schema).finish()
    for joining in open_files.values():
        yield from joining.finish()


class _Joining:
    """A joined file that is being written."""

    def __init__(self, place: _Place, file: str, schema: pa.Schema) -> None:
        self._place = place
        self._file = file
        self._stream = place.system.open_output_stream(place.path(DATA, file))
        self._writer = pq.ParquetWriter(self._stream, schema, compression="zstd")
        self._names: list[str] = []
        self._tables: list[pa.Table] = []
        self.size = 0
        """Bytes of the small files."""

    def add(self, name: str, rows: pa.Table, size: int) -> None:
        """Add a small file."""
        self._names.append(name)
        self._tables.append(rows)
        self.size += size
        if sum(map(len, self._tables)) >= _ROWS:
            self._write()

    def finish(self) -> Iterator[Entry]:
        """Complete the file. One that has only a single small file is deleted."""
        self._write()
        self._writer.close()
        self._stream.close()
        self._place.sync(self._place.path(DATA, self._file))
        if len(self._names) > 1:
            yield Entry(self._file, tuple(self._names))
        else:
            self._place.system.delete_file(self._place.path(DATA, self._file))

    def _write(self) -> None:
        if self._tables:
            self._writer.write_table(pa.concat_tables(self._tables), row_group_size=_ROWS)
            self._tables.clear()
