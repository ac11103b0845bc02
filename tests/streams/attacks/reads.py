"""Attacks by reading: answers that cost much to make, or that nobody reads."""

import asyncio
import contextlib
import random
import time
from collections.abc import Iterable
from itertools import count

from tests.streams.attacks.attackers import JSON, MIB, ONE, ROOT, Attackers, Connections, greatest, head, repeat, spread

CLIENTS = 32
SLOW_READERS = 500


async def events(attackers: Attackers, readers: int) -> None:
    """Event streams of one append of line ends, each of which is a line of an event. Nobody reads them."""
    size = await attackers.fill("lines", b"\n", 16 * MIB)
    attackers.notes.append(f"appends of {size:,} bytes")
    await attackers.hold(attackers.seconds, readers, head("GET", f"{ROOT}/lines?offset=-1&live=sse"))


async def middle(attackers: Attackers) -> None:
    """Reads that begin in the middle of one append of many messages of JSON: half of them near its end."""
    await attackers.put("numbers", **JSON)
    messages = await greatest(2**18, lambda size: attackers.post("numbers", b"[%b0]" % (b"0," * (size - 1)), **JSON))
    attackers.notes.append(f"{messages:,} messages in an append")

    async def read(client: int, number: int) -> None:
        least = 0 if client % 2 else max(0, messages - 1000)
        await attackers.request("GET", f"{ROOT}/numbers?offset={_offset(random.randrange(least, messages))}")

    attackers.notes.append(f"{await repeat(attackers.seconds, CLIENTS, read):,} reads")


def _offset(position: int) -> str:
    return f"{0:016}_{position:016}"


async def unread(attackers: Attackers, readers: int, addresses: Iterable[str] = ONE) -> None:
    """Long answers that nobody reads."""
    await attackers.fill("long", b"x", 8 * MIB)
    with Connections(attackers) as kept:
        await kept.open(readers, head("GET", f"{ROOT}/long?offset=-1"), addresses)
        await asyncio.sleep(attackers.seconds / 2)
        # Another one's long read, by an address that holds nothing. It can be had, or is told when to come again.
        status, body = await attackers.request("GET", f"{ROOT}/long?offset=-1")
        attackers.notes.append(f"another long read: {status}, {len(body):,} bytes")
        await asyncio.sleep(attackers.seconds / 2)


async def slow_readers(attackers: Attackers) -> None:
    """Event streams of which each client reads one byte a second, while the stream grows."""
    await attackers.fill("long", b"x", 4 * MIB)
    with Connections(attackers) as kept:
        await kept.open(SLOW_READERS, head("GET", f"{ROOT}/long?offset=-1&live=sse"))
        await asyncio.sleep(1)
        kept.count()
        end = time.monotonic() + attackers.seconds
        for number in count():
            await attackers.post("long", b"%d" % number * 10_000)
            for reader in kept.sockets:
                with contextlib.suppress(OSError):  # it has nothing, or is disconnected
                    reader.recv(1)
            if time.monotonic() > end:
                return
            await asyncio.sleep(1)


async def small_events(attackers: Attackers) -> None:
    """Event streams that nobody reads, and appends of 15 KB, each of which the kernel takes for a while."""
    await attackers.put("small")
    with Connections(attackers) as kept:
        await kept.open(2 * SLOW_READERS, head("GET", f"{ROOT}/small?offset=now&live=sse"))
        for _ in range(10 if attackers.short else 60):
            await attackers.post("small", b"x" * 15_000)
            await asyncio.sleep(attackers.seconds / 60)


async def polls(attackers: Attackers) -> None:
    """Long polls that nobody reads, each of a stream of its own, with a message as long as the server takes."""
    count = 50 if attackers.short else 400
    for number in range(count):
        await attackers.put(f"own-{number}", **JSON)
    with Connections(attackers) as kept:
        await kept.open(count, lambda number: head("GET", f"{ROOT}/own-{number}?offset=now&live=long-poll"))
        await asyncio.sleep(1)
        for number in range(count):
            await attackers.post(f"own-{number}", b'"%b"' % (b"x" * (MIB - 2)), **JSON)
        await asyncio.sleep(attackers.seconds / 4)


async def places(attackers: Attackers) -> None:
    """Event streams of very small appends, each at a place of its own, and disconnected after the first piece."""
    await attackers.put("rows")
    count = 1_000 if attackers.short else 10_000
    await spread(count, 64, lambda number: attackers.post("rows", b"."))

    async def read(client: int, number: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", attackers.port)
        with contextlib.closing(writer):
            offset = _offset((client + CLIENTS * number) % count)
            writer.write(head("GET", f"{ROOT}/rows?offset={offset}&live=sse"))
            await reader.read(100_000)

    attackers.notes.append(f"{await repeat(attackers.seconds, CLIENTS, read):,} event streams")
