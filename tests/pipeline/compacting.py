"""Writes batches and merges them, or is killed meanwhile: `python -m tests.pipeline.compacting write|kill CUBE`.

- `write` writes a hundred batches, and merges them as it goes. The file `CUBE/_written` has the number of batches.
- `kill` forks a process for each change that a merge makes to the files of CUBE, and more that end at random times.
  Each is killed, the rows are counted, the rest is merged, and they are counted again. Prints the number of kills.
"""

import os
import random
import shutil
import signal
import sys
import time
from pathlib import Path

from purgatory.pipeline import compact, cube
from tests.pipeline.batches import numbered, write_batch

BATCHES = 100
SIZES = (3, 9)
CHANGES = ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir")
AT_RANDOM = 20


def numbers(path: Path) -> list[int]:
    """The numbers of the batches that a reader finds."""
    table = cube.load(str(path), lambda day: True)
    return sorted(
        int(name)
        for name, times in zip(table["operation"].to_pylist(), table["operations"].to_pylist(), strict=True)
        for _ in range(times)
    )


def merge_all(path: Path) -> None:
    """Merge until nothing is left to merge."""
    while compact.compact(str(path)):
        pass


def _write(path: Path) -> None:
    for number in range(BATCHES):
        write_batch(path, number, numbered(number))
        hidden = path / "._written"
        hidden.write_text(str(number + 1))
        hidden.rename(path / "_written")
        merge_all(path)


def _killed(path: Path, change: int, after: float) -> bool:
    """Merge in a process that is killed before so many changes, or after so many seconds, unless it ends earlier."""
    child = os.fork()
    if not child:
        changes = 0

        def count(event: str, arguments: tuple[object, ...]) -> None:
            nonlocal changes
            if event in CHANGES:
                if changes == change:
                    os.kill(os.getpid(), signal.SIGKILL)
                changes += 1

        sys.addaudithook(count)
        merge_all(path)
        os._exit(0)
    if after:
        time.sleep(after)
        os.kill(child, signal.SIGKILL)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


def _kill(path: Path) -> None:
    expected = list(range(10))
    for number in expected:
        write_batch(path, number, numbered(number))
    merged = path.with_name("merged")
    shutil.copytree(path, merged)
    start = time.perf_counter()
    merge_all(merged)
    duration = time.perf_counter() - start
    files = cube.files(str(merged))
    plans = [(change, 0.0) for change in range(10_000)]
    kills = 0
    at_random = [(-1, random.uniform(0.0, duration)) for _ in range(AT_RANDOM)]
    while plans:
        change, after = plans.pop(0)
        copy = path.with_name("copy")
        shutil.copytree(path, copy)
        is_killed = _killed(copy, change, after)
        kills += is_killed
        if not is_killed and not after:
            plans = at_random
        assert numbers(copy) == expected, (change, after)
        merge_all(copy)
        assert numbers(copy) == expected, (change, after)
        assert cube.files(str(copy)) == files
        entries = {entry for entry in os.listdir(copy) if entry.startswith("batch")}
        assert entries == {name.partition("/")[0] for name in files}, (change, after)
        shutil.rmtree(copy)
    sys.stdout.write(f"{kills}\n")


if __name__ == "__main__":
    compact.SIZES = SIZES
    {"write": _write, "kill": _kill}[sys.argv[1]](Path(sys.argv[2]))
