"""Minutes of load with clients that come, go and disappear: no client is lost, none is left, memory stays flat.

python -m examples.long_poll_server.soak [--seconds 300]

Followers read every topic from its beginning, some as replicas for which publishers wait; others wait for a message
that comes at the end; others come for a single answer. Meanwhile clients leave in all ways there are, are killed, and
read eight MiB byte by byte. Now and then all of those pause, for a census: then exactly the living clients wait, and
every follower has read every message, each once and in order. A broken promise is raised.
"""

import argparse
import asyncio
import platform
import random
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import aiohttp
import psutil
import uvloop

from examples.long_poll_server.load.figures import milliseconds
from examples.long_poll_server.load.rude import KILLED, WAYS, be_killed, leave, read_slowly
from examples.long_poll_server.load.server import Metrics, Server, raise_file_limit, running_server, session

WRITE_TIMEOUT = 5.0
SERVER_OPTIONS = ("--max-wait", "300", "--max-pending-client", "100000", "--write-timeout", str(WRITE_TIMEOUT))
"""Seconds. A request that is not forgotten when its client has gone waits for longer than a census."""


TOPICS = [f"topic-{number}" for number in range(10)]
REPLICAS = ("first", "second")
FOLLOWERS = 5
"""Of each topic, the replicas among them."""
HELD = 500
"""Clients that wait for one message, from the beginning to the end."""
PUBLISHERS = 5
VISITORS = 10
LEAVING = 15
SLOW = 20
BIG = 9
"""Messages of a million bytes: what a slow reader asks for."""


@dataclass
class Sample:
    """The result of a census."""

    seconds: float
    memory: float
    waiting: int
    messages: int


@dataclass
class Soaked:
    """The counts of the run."""

    seconds: float
    samples: list[Sample] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    latencies: list[float] = field(default_factory=list)
    """Seconds from publish to each follower's answer."""
    memory: list[float] = field(default_factory=list)
    """Bytes of the server's, whenever it was looked at."""
    scrapes: list[float] = field(default_factory=list)
    left: int = 0
    """Operations pending at the end."""
    files: int = 0
    """Open ones at the end that were not at the beginning."""

    def growth(self) -> float:
        """How many times as much memory as in its first half the server had in the second, at most."""
        half = len(self.memory) // 2
        return max(self.memory[half:]) / max(self.memory[:half])

    def rows(self) -> list[tuple[str, str]]:
        """Of a table."""
        mib = 2**20
        step = max(1, len(self.samples) // 10)
        curve = ", ".join(f"{sample.memory / mib:.0f}" for sample in self.samples[::step])
        return [
            ("messages published, of which acknowledged by replicas", self._count("published", "acknowledged")),
            (
                f"answers with them to {FOLLOWERS * len(TOPICS)} followers, each with each message once",
                self._count("followed"),
            ),
            ("from publish to answer: 50th, 90th, 99th percentile, most", milliseconds(self.latencies)),
            ("visitors answered with a message, without", self._count("visited", "visited in vain")),
            (f"left by {', '.join(WAYS)}", self._count(*(f"left: {way}" for way in WAYS))),
            (f"processes killed, with {KILLED} waiting requests each", self._count("killed")),
            ("slow readers of 8 MiB", self._count("slow")),
            (f"censuses: exactly the living clients wait ({self.samples[0].waiting})", f"{len(self.samples):,}"),
            ("server's memory at the censuses, and at most", f"{curve}; {max(self.memory) / mib:.0f} MiB"),
            ("`GET /metrics` meanwhile", milliseconds(self.scrapes)),
            ("at the end: pending, open files more than before", f"{self.left}, {self.files}"),
        ]

    def _count(self, *names: str) -> str:
        return ", ".join(f"{self.counts[name]:,}" for name in names)


class Gate:
    """A gate that holds all clients up for a census."""

    def __init__(self) -> None:
        self._open = asyncio.Event()
        self._empty = asyncio.Event()
        self._inside = 0
        self.open()

    def open(self) -> None:
        """Go on."""
        self._open.set()

    async def close(self) -> None:
        """Let no client start a request; return when all started ones are done."""
        self._open.clear()
        while self._inside:
            self._empty.clear()
            await self._empty.wait()

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Do one thing inside."""
        await self._open.wait()
        self._inside += 1
        try:
            yield
        finally:
            self._inside -= 1
            self._empty.set()


class Soak:
    """All clients of the load, and their shared state."""

    def __init__(self, server: Server, client: aiohttp.ClientSession, seconds: float, seed: int) -> None:
        self.server = server
        self.client = client
        self.seconds = seconds
        self.seed = seed
        self.gate = Gate()
        self.seen = Soaked(seconds)
        self.published: defaultdict[str, dict[int, float]] = defaultdict(dict)
        self.read: list[tuple[str, list[float]]] = []
        """Of each follower, its topic and the values that it has got."""
        self.held = 0

    async def run(self) -> Soaked:
        """Everything, in its time."""
        for _ in range(BIG):
            await self.publish("big", "x" * 1_000_000, 0)
        async with self.client.get("/topics/big/messages") as response:  # the log opens a file when it reads first
            await response.read()
        files = (await self.server.metrics(self.client)).files
        began = time.monotonic()
        async with asyncio.TaskGroup() as group:
            lasting = [group.create_task(self._hold()) for _ in range(HELD)]
            for topic in TOPICS:
                for number in range(FOLLOWERS):
                    replica = REPLICAS[number] if number < len(REPLICAS) else None
                    lasting.append(group.create_task(self._follow(topic, replica)))
            await self.server.until_pending(self.client, len(lasting))
            passing = [
                group.create_task(self._again_and_again(action, f"{self.seed}-{action.__name__}-{number}"))
                for action, count in (
                    (self._publish, PUBLISHERS),
                    (self._visit, VISITORS),
                    (self._leave, LEAVING),
                    (self._be_killed, 1),
                )
                for number in range(count)
            ]
            # They do not wait in a purgatory, and are in no census.
            passing += [group.create_task(self._read_slowly(random.Random(f"{self.seed}-{n}"))) for n in range(SLOW)]
            passing.append(group.create_task(self._look()))
            censuses = max(3, round(self.seconds / 10))
            for number in range(1, censuses + 1):
                await asyncio.sleep(max(0.0, began + self.seconds * number / censuses - time.monotonic()))
                await self.gate.close()
                await self._census(time.monotonic() - began, len(lasting))
                if number < censuses:
                    self.gate.open()
            for task in passing:
                task.cancel()
            await self.publish("held", 0.0, 0)
            for topic in TOPICS:
                await self.publish(topic, 0.0, 0)
        if self.held != HELD:
            raise RuntimeError(f"{HELD} clients waited for the end, and {self.held} got it")
        self._check()
        await self._at_the_end(files)
        return self.seen

    async def publish(self, topic: str, value: float | str, acks: int) -> int:
        """Publish, and wait for so many replicas. Returns the offset."""
        path = f"/topics/{topic}/messages"
        async with self.client.post(path, params={"acks": acks, "timeout": 45}, json={"value": value}) as response:
            offset: int = (await response.json())["offset"]
        if isinstance(value, float):
            if offset in self.published[topic]:
                raise RuntimeError(f"{topic} has two messages at {offset}")
            self.published[topic][offset] = value
        return offset

    async def fetch(self, topic: str, **parameters: str | float) -> list[float]:
        """The values that come, whose offsets are looked at."""
        async with self.client.get(f"/topics/{topic}/messages", params=parameters) as response:
            answer = await response.json()
        offsets = [message["offset"] for message in answer["messages"]]
        if offsets != list(range(int(parameters["offset"]), answer["next_offset"])):
            raise RuntimeError(f"asked for {parameters}, got messages {offsets}")
        return [message["value"] for message in answer["messages"]]

    async def _again_and_again(self, action: Callable[[random.Random], Awaitable[None]], seed: str) -> None:
        draw = random.Random(seed)
        while True:
            async with self.gate.turn():
                await action(draw)

    async def _hold(self) -> None:
        while not (values := await self.fetch("held", offset=0, wait=300)):
            pass
        self.held += len(values)

    async def _follow(self, topic: str, replica: str | None) -> None:
        read: list[float] = []
        self.read.append((topic, read))
        who = {} if replica is None else {"replica": replica}
        while not read or read[-1]:  # the last message is a zero
            values = await self.fetch(topic, offset=len(read), wait=20, **who)
            now = time.monotonic()
            self.seen.latencies += [now - value for value in values if value]
            self.seen.counts["followed"] += bool(values)
            read += values

    async def _publish(self, draw: random.Random) -> None:
        await asyncio.sleep(draw.expovariate(8.0))
        acks = draw.randrange(1, len(REPLICAS) + 1) if draw.random() < 0.3 else 0
        await self.publish(draw.choice(TOPICS), time.monotonic(), acks)
        self.seen.counts["published"] += 1
        self.seen.counts["acknowledged"] += acks > 0

    async def _visit(self, draw: random.Random) -> None:
        topic = draw.choice(TOPICS)
        offset = len(self.published[topic])
        values = await self.fetch(topic, offset=offset, wait=draw.uniform(0.01, 1.0))
        self.seen.counts["visited" if values else "visited in vain"] += 1

    async def _leave(self, draw: random.Random) -> None:
        way = draw.choice(WAYS)
        await leave(self.server.url, draw, way)
        self.seen.counts[f"left: {way}"] += 1

    async def _read_slowly(self, draw: random.Random) -> None:
        while True:
            await read_slowly(self.server.url, draw, draw.uniform(0.1, min(2 * WRITE_TIMEOUT, self.seconds / 4)))
            self.seen.counts["slow"] += 1

    async def _be_killed(self, draw: random.Random) -> None:
        await asyncio.sleep(min(2.0, self.seconds / 10))
        await be_killed(self.server.url, draw)
        self.seen.counts["killed"] += 1

    async def _look(self) -> None:
        while True:
            await self._metrics()
            await asyncio.sleep(0.5)

    async def _metrics(self) -> Metrics:
        metrics = await self.server.metrics(self.client)
        self.seen.memory.append(metrics.memory)
        return metrics

    async def _census(self, seconds: float, alive: int) -> None:
        for purgatory, count in (("fetch", alive), ("produce", 0)):
            await self.server.until_pending(self.client, count, purgatory)
        metrics = await self._metrics()
        if metrics.finished("failed") or metrics.finished("expired", "produce"):
            raise RuntimeError("operations have failed, or replicas have not acknowledged")
        self._check()
        messages = sum(len(values) for values in self.published.values())
        self.seen.samples.append(Sample(seconds, metrics.memory, metrics.pending(), messages))

    def _check(self) -> None:
        """Every follower has read every message, each once and in order."""
        for topic, read in self.read:
            published = self.published[topic]
            if read != [published[offset] for offset in range(len(published))]:
                raise RuntimeError(f"a follower of {topic} has read {len(read)} messages of {len(published)}")

    async def _at_the_end(self, files: int) -> None:
        for purgatory in ("fetch", "produce", "throttle"):
            await self.server.until_pending(self.client, 0, purgatory)
        self.seen.scrapes = self.server.scrapes
        async with session(self.server.url) as another:
            await self.client.close()
            async with asyncio.timeout(60):
                # The connection that asks is one.
                while (metrics := await self.server.metrics(another)).files > files:
                    await asyncio.wait([asyncio.create_task(asyncio.sleep(0.1))])
        self.seen.left = sum(metrics.pending(purgatory) for purgatory in ("fetch", "produce", "throttle"))
        self.seen.files = metrics.files - files


async def soak(seconds: float, seed: int = 0) -> Soaked:
    """Have a server soak for so many seconds. Raises `RuntimeError` or `TimeoutError` for what does not hold."""
    raise_file_limit()
    with running_server(*SERVER_OPTIONS) as server:
        async with session(server.url) as client:
            return await Soak(server, client, seconds, seed).run()


def main() -> None:
    """Soak and print."""
    parser = argparse.ArgumentParser("long_poll_server.soak", description="Minutes of load with rude clients.")
    parser.add_argument("--seconds", type=float, default=300.0, help="default: 300")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if not 1 <= options.seconds < float("inf"):
        parser.error("a soak takes a second at least")
    soaked = uvloop.run(soak(options.seconds, options.seed))
    print(f"CPython {platform.python_version()}, {platform.system()} {platform.machine()}, {psutil.cpu_count()} cores")
    print(f"\n| {options.seconds:g} seconds | |\n| --- | --- |")
    for what, told in soaked.rows():
        print(f"| {what} | {told} |")
    print(f"\nmemory, second half to first: {soaked.growth():.2f}")


if __name__ == "__main__":
    main()
