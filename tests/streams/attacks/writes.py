"""Attacks by writing: bodies that stop before their end, forks of forks, and streams of many appends."""

import time
from collections.abc import Iterable

from tests.streams.attacks.attackers import MIB, ONE, ROOT, Attackers, flood, head, repeat

WRITERS = 64
MISSING = 10
TYPE = "Content-Type: text/plain"


async def stalled(attackers: Attackers, writers: int, addresses: Iterable[str] = ONE) -> None:
    """Bodies as large as the server takes, which stop before their end."""
    size = await attackers.fill("large", b"x", 16 * MIB)
    attackers.notes.append(f"bodies of {size:,} bytes")
    sent = head("POST", f"{ROOT}/large", TYPE, f"Content-Length: {size}") + b"x" * (size - MISSING)
    await attackers.hold(attackers.seconds, writers, sent, addresses)


async def forks(attackers: Attackers) -> None:
    """A chain of forks of one byte each. All but the last are deleted, which are kept for that one, and then it is."""
    await attackers.put("f0", b"x")
    end = time.monotonic() + attackers.limit / 2
    last = depth = deepest = 0
    while last < (300 if attackers.short else 3000) and time.monotonic() < end:
        depth += 1
        if await attackers.put(f"f{last + 1}", b"x", Stream_Forked_From=f"{ROOT}/f{last}") != 201:
            await attackers.put(f"f{last + 1}", b"x")  # it is refused for its depth: another chain begins
            depth = 0
        last += 1
        deepest = max(depth, deepest)
    attackers.notes.append(f"{last} forks, {deepest} deep at most")
    for number in range(last):
        await attackers.request("DELETE", f"{ROOT}/f{number}")
    begin = time.monotonic()
    await attackers.request("DELETE", f"{ROOT}/f{last}")
    attackers.notes.append(f"the last one's deletion took {time.monotonic() - begin:.2f} s")


async def rows(attackers: Attackers) -> None:
    """As many appends as can be made, and the deletion of their stream."""
    await attackers.put("rows")
    await flood(attackers, head("POST", f"{ROOT}/rows", TYPE, "Content-Length: 1") + b".", WRITERS)
    begin = time.monotonic()
    await attackers.request("DELETE", f"{ROOT}/rows")
    attackers.notes.append(f"{attackers.statuses['204']:,} appends, deleted in {time.monotonic() - begin:.2f} s")


async def refused(attackers: Attackers) -> None:
    """Appends as long as the server takes, to a stream that does not exist."""
    await repeat(attackers.seconds, 2, lambda client, number: attackers.post("none", b"x" * MIB))
