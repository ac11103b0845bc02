"""Attacks by connections: long polls that make the server keep their bytes, and more connections than it can have."""

import asyncio
import re

from tests.streams.attacks.attackers import ROOT, Attackers, flood, head

POLLS = 1_000
KEPT = 300 * 1024
"""Bytes that come behind each long poll."""
INCOMPLETE = 5_000
EVENT_STREAMS = 5_000
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


async def incomplete(attackers: Attackers) -> None:
    """Heads of 15 KiB that do not end."""
    line = f"X-Filler: {'x' * 15_000}\r\n".encode()
    async with attackers.connections() as kept:
        await kept.open(INCOMPLETE, f"GET {ROOT}/none HTTP/1.1\r\nHost: localhost\r\n".encode() + line)
        await asyncio.sleep(attackers.seconds / 2)


async def headers(attackers: Attackers) -> None:
    """Heads of 16 KiB with as many headers as they can have."""
    sent = head("GET", f"{ROOT}/none?offset=-1")[:-2] + b"a:\r\n" * 4_000 + b"\r\n"
    await flood(attackers, sent)


async def chunks(attackers: Attackers) -> None:
    """Bodies in chunks of one byte, 250 KiB of them at once."""
    sent = head("POST", f"{ROOT}/none", "Content-Type: text/plain", "Transfer-Encoding: chunked")
    await flood(attackers, sent + b"1\r\nx\r\n" * 43_000 + b"0\r\n\r\n")


async def trailers(attackers: Attackers) -> None:
    """Trailers without an end, behind a chunked body."""
    sent = head("POST", f"{ROOT}/none", "Content-Type: text/plain", "Transfer-Encoding: chunked")
    async with attackers.connections() as kept:
        await kept.open(60, sent + b"1\r\nx\r\n0\r\n" + b"aa:bb\r\n" * 73_000)
        await asyncio.sleep(attackers.seconds / 2)


async def brief(attackers: Attackers) -> None:
    """Event streams of a stream that lives for a second, and does not end while it is read."""
    await attackers.put("brief", Stream_TTL="1")
    async with attackers.connections() as kept:
        await kept.open(EVENT_STREAMS, head("GET", f"{ROOT}/brief?offset=now&live=sse"))
        await asyncio.sleep(attackers.seconds / 2)
