"""Purgatories in several interpreters of one process, each with a GIL and a core of its own."""

import subprocess
import sys

import pytest

from purgatory import __core__

IN_EACH = """
import asyncio
from purgatory import DelayedOperation, DelayedOperationPurgatory, VirtualClock, __core__

class Answer(DelayedOperation):
    def try_complete(self):
        return False
    def on_complete(self):
        return 42

clock = VirtualClock()
purgatory = DelayedOperationPurgatory(clock=clock)
operations = [purgatory.try_complete_else_watch(Answer(1.0 + n), ["key"]) for n in range(1000)]
operations[0].force_complete()
clock.advance(2000.0)
assert {operation.result() for operation in operations} == {42}

async def main():
    async with DelayedOperationPurgatory() as purgatory:
        assert await purgatory.try_complete_else_watch(Answer(0.01), ["key"]) == 42

asyncio.run(main())
print(__core__, flush=True)
"""

PROGRAM = f"""
import _interpreters, threading
CODE = {IN_EACH!r}
interpreters = [_interpreters.create("isolated") for _ in range(4)]

def run(interpreter):
    failed = _interpreters.run_string(interpreter, CODE)
    assert failed is None, failed

for _ in range(2):
    threads = [threading.Thread(target=run, args=[each]) for each in interpreters]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
for each in interpreters:
    _interpreters.destroy(each)
exec(CODE)
"""


@pytest.mark.skipif(sys.version_info < (3, 13), reason="before CPython 3.13, asyncio does not work in them")
def test_each_interpreter_has_a_core_of_its_own() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False, timeout=300)
    assert done.stderr == ""
    assert done.returncode == 0
    assert "".join(done.stdout.split()) == __core__ * 9  # two may write at once
