"""Attacks by connections: long polls that make the server keep their bytes, and more connections than it can have."""

import asyncio
import re

from tests.streams.attacks.attackers import ROOT, Attackers, head

POLLS = 1_000
KEPT = 300 * 1024
"""Bytes that come behind each long poll."""
FILES = 512
COUNTED = re.compile(r"^(\w*(?:descriptor|accept|refused|files)\w*_total\S* [1-9]\S*)$", re.MULTILINE)
"""A metric that has counted something of this."""
FACT = re.compile(r"descriptor|too many open files|out of (system )?(resource|file)s?|EMFILE", re.IGNORECASE)
"""What a line of the log says about it."""


async def heads(attackers: Attackers) -> None:
    """Long polls with long headers, queries and cursors, below the limit of a head and above."""
    await attackers.put("quiet")
    path = f"{ROOT}/quiet?offset=now&live=long-poll"

    def sent(number: int) -> bytes:
        kind, size = number % 4, 60_000 if number % 8 == 7 else 15_000
        filler = f"{number:06}" * (size // 6)
        if kind == 0:
            return head("GET", f"{path}&cursor={filler}")
        if kind == 1:
            return head("GET", f"{path}&filler={filler}")
        if kind == 2:
            return head("GET", path, *(f"X-{number}: {filler[:100]}" for number in range(130)))
        return head("GET", path, f"X-Filler: {filler}")

    async with attackers.connections() as kept:
        await kept.open(POLLS, sent)
        await asyncio.sleep(attackers.seconds)


async def behind(attackers: Attackers) -> None:
    """Long polls with another request behind each, whose body comes before the poll is answered."""
    await attackers.put("quiet")
    poll = head("GET", f"{ROOT}/quiet?offset=now&live=long-poll")
    append = head("POST", f"{ROOT}/quiet", "Content-Type: text/plain", f"Content-Length: {KEPT}")
    async with attackers.connections() as kept:
        await kept.open(POLLS, poll)
        await asyncio.sleep(attackers.seconds / 2)  # or they would be two requests that come at once
        loop = asyncio.get_running_loop()
        sending = [loop.create_task(loop.sock_sendall(each, append + b"x" * KEPT)) for each in kept.sockets]
        await asyncio.sleep(attackers.seconds / 2)
        for task in sending:  # where the server does not read, they have not sent all
            task.cancel()
        await asyncio.gather(*sending, return_exceptions=True)


async def descriptors(attackers: Attackers) -> None:
    """More idle connections than the server may have open files, for a while."""
    async with attackers.connections() as kept:
        await kept.open(FILES + 100, b"")
        await asyncio.sleep(attackers.seconds / 2)
        lines = [line for line in attackers.server.log.splitlines() if FACT.search(line)]
    attackers.check("lines of the log that say so", len(lines), "1 to 20", 1 <= len(lines) <= 20)
    await asyncio.sleep(0.5)
    answer = await attackers.request("GET", "/metrics")
    attackers.check("an answer when they have gone", answer.status, "200", answer.status == 200)
    counted = COUNTED.findall(answer.body.decode())
    attackers.check("a metric that counts them", ", ".join(counted) or "none", "more than 0", bool(counted))
