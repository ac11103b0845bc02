"""Attacks by writing: bodies that stop before their end, forks of forks, and streams of many appends."""

import asyncio
import contextlib
import time
from collections.abc import Iterable

from tests.streams.attacks.attackers import MIB, ONE, ROOT, Attackers, head, repeat

WRITERS = 64
MISSING = 10


async def stalled(attackers: Attackers, writers: int, addresses: Iterable[str] = ONE) -> None:
    """Bodies as large as the server takes, which stop before their end."""
    size = await attackers.fill("large", b"x", 16 * MIB)
    attackers.note(f"bodies of {size:,} bytes")
    sent = head("POST", f"{ROOT}/large", "Content-Type: text/plain", f"Content-Length: {size}") + b"x" * (
        size - MISSING
    )
    async with attackers.connections() as kept:
        opening = asyncio.create_task(kept.open(writers, sent, addresses))
        await asyncio.sleep(attackers.seconds)
        opening.cancel()  # where the server does not read, some have not sent all
        with contextlib.suppress(asyncio.CancelledError):
            await opening


async def forks(attackers: Attackers) -> None:
    """A chain of forks of one byte each. All but the last are deleted, which are kept for that one, and then it is."""
    await attackers.put("f0", b"x")
    end = time.monotonic() + attackers.limit / 2
    last = 0
    chains = [0]
    """Where chains begin: another one does where a fork is refused for its depth."""
    while last < (300 if attackers.short else 3000) and time.monotonic() < end:
        number = last + 1
        answer = await attackers.put(f"f{number}", b"x", Stream_Forked_From=f"{ROOT}/f{last}")
        if answer.status != 201:
            answer = await attackers.put(f"f{number}", b"x")
            chains.append(number)
        last = number
    depth = max(after - before for before, after in zip(chains, [*chains[1:], last + 1], strict=True))
    attackers.note(f"{last} forks, {depth} deep at most")
    for number in range(last):
        await attackers.request("DELETE", f"{ROOT}/f{number}")
    begin = time.monotonic()
    await attackers.request("DELETE", f"{ROOT}/f{last}")
    attackers.note(f"the last one's deletion took {time.monotonic() - begin:.2f} s")


async def rows(attackers: Attackers) -> None:
    """As many appends as can be made, and the deletion of their stream."""
    await attackers.put("rows")
    end = time.monotonic() + (attackers.seconds if attackers.short else 1.5 * attackers.seconds)
    sent = head("POST", f"{ROOT}/rows", "Content-Type: text/plain", "Content-Length: 1") + b"."
    made = 0

    async def append() -> None:
        nonlocal made
        reader, writer = await asyncio.open_connection("127.0.0.1", attackers.server.port)
        with contextlib.closing(writer):
            while time.monotonic() < end:
                writer.write(sent)
                answer = await reader.readuntil(b"\r\n\r\n")  # a 204 has nothing else
                attackers.count(int(answer.split()[1]), {"retry-after"} if b"retry-after" in answer.lower() else ())
                if not answer.startswith(b"HTTP/1.1 204"):
                    return
                made += 1

    await asyncio.gather(*(append() for _ in range(WRITERS)), return_exceptions=True)
    begin = time.monotonic()
    await attackers.request("DELETE", f"{ROOT}/rows")
    attackers.note(f"{made:,} appends, deleted in {time.monotonic() - begin:.2f} s")


async def refused(attackers: Attackers) -> None:
    """Appends as long as the server takes, to a stream that does not exist."""
    body = b"x" * MIB
    await repeat(attackers.seconds, 2, lambda client, number: attackers.post("none", body))
