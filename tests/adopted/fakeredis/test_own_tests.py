"""fakeredis' own tests pass with its blocking commands as operations, and the longest waiter is served first."""

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import brought
from tests.support.paths import ROOT
from tests.support.servers import program

VERSION = "2.41.0"
HERE = Path(__file__).parent
NEEDS = ["valkey>=6", "lupa", "jsonpath-ng", "pyprobables", "xxhash"]
PORT = 6390
"""Where the tests look for a real Redis, whose version their fixtures ask for."""


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[None]:
    command = [program("redis-server", "redis-server"), "--port", str(PORT), "--save", "", "--dir", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        yield
        process.terminate()


@pytest.mark.usefixtures("redis")
@pytest.mark.timeout(1800)
def test_fakeredis_own_tests_pass(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = brought.source("fakeredis", tmp_path, VERSION)
    # With hiredis, which another test needs, redis-py words an error differently from what these tests expect.
    (tmp_path / "without_hiredis.py").write_text('import sys\n\nsys.modules["hiredis"] = None\n')
    done = brought.run(
        source,
        *("-m", "fake and not slow or fake and asyncio", "test/test_async", "test/test_mixins", "test/test_internals"),
        plugins=["without_hiredis", "pytest_asyncio.plugin", "pytest_mock", "port"],
        paths=[HERE, tmp_path, source, brought.install(tmp_path / "needs", *NEEDS), ROOT],
    )
    passed, blocked = brought.counts(done, "commands that blocked as operations")
    with capsys.disabled():
        sys.stdout.write(f"\nfakeredis {VERSION}: {passed} passed, {blocked} commands blocked as operations\n")
    assert passed > 1000
    assert blocked > 0


SERVED = """
import asyncio, port
from fakeredis import FakeServer, aioredis

async def main():
    server, served = FakeServer(), {}
    async def take(number):
        _, served[number] = await aioredis.FakeRedis(server=server).blpop("queue", timeout=0)
    tasks = []
    for number in range(100):
        tasks.append(asyncio.ensure_future(take(number)))
        while port._Recorded.blocked <= number:
            await asyncio.sleep(0)
    client = aioredis.FakeRedis(server=server)
    for number in range(100):
        await client.rpush("queue", number)
    await asyncio.gather(*tasks)
    print(all(served[number] == b"%d" % number for number in range(100)))

port.install()
asyncio.run(main())
"""


async def test_the_longest_waiter_is_served_first() -> None:
    command = [sys.executable, "-c", SERVED]
    environment = {"PYTHONPATH": f"{HERE}:{ROOT}"}
    process = await asyncio.create_subprocess_exec(*command, env=environment, stdout=asyncio.subprocess.PIPE)
    told, _ = await process.communicate()
    assert told == b"True\n"
