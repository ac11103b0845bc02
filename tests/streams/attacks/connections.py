"""Attacks by connections: long polls that make the server keep their bytes, and more connections than it can have."""

import asyncio
import re

from tests.streams.attacks.attackers import ROOT, Attackers, Connections, flood, head

POLLS = 1_000
KEPT = 300 * 1024
"""Bytes that come behind each long poll."""
FILES = 512
QUIET = f"{ROOT}/quiet?offset=now&live=long-poll"
CHUNKED = head("POST", f"{ROOT}/none", "Content-Type: text/plain", "Transfer-Encoding: chunked")


async def heads(attackers: Attackers) -> None:
    """Long polls with long headers, queries and cursors, below the limit of a head and above."""
    await attackers.put("quiet")

    def sent(number: int) -> bytes:
        filler = f"{number:06}" * (10_000 if number % 8 == 7 else 2_500)
        if number % 4 == 2:
            return head("GET", QUIET, *(f"X-{number}: {filler[:100]}" for number in range(130)))
        if number % 4 == 3:
            return head("GET", QUIET, f"X-Filler: {filler}")
        return head("GET", f"{QUIET}&{'filler' if number % 4 else 'cursor'}={filler}")

    await attackers.hold(attackers.seconds, POLLS, sent)


async def behind(attackers: Attackers) -> None:
    """Long polls with another request behind each, whose body comes before the poll is answered."""
    await attackers.put("quiet")
    append = head("POST", f"{ROOT}/quiet", "Content-Type: text/plain", f"Content-Length: {KEPT}")
    with Connections(attackers) as kept:
        await kept.open(POLLS, head("GET", QUIET))
        await asyncio.sleep(attackers.seconds / 2)  # or they would be two requests that come at once
        loop = asyncio.get_running_loop()
        sending = [loop.create_task(loop.sock_sendall(each, append + b"x" * KEPT)) for each in kept.sockets]
        await asyncio.sleep(attackers.seconds / 2)
        for task in sending:  # where the server does not read, they have not sent all
            task.cancel()
        await asyncio.gather(*sending, return_exceptions=True)


async def descriptors(attackers: Attackers) -> None:
    """More idle connections than the server may have open files, for a while."""
    await attackers.hold(attackers.seconds / 2, FILES + 100, b"")
    lines = attackers.log().count("out of descriptors")
    attackers.check(f"{lines} lines of the log, which are to be 1 to 20", ok=1 <= lines <= 20)
    await asyncio.sleep(0.5)
    status, body = await attackers.request("GET", "/metrics")
    attackers.check(f"{status} when they have gone", ok=status == 200)
    counted = re.search(rb"^purgatory_connections_refused_total [1-9]", body, re.MULTILINE)
    attackers.check(f"counted by a metric: {counted is not None}", ok=counted is not None)


async def incomplete(attackers: Attackers) -> None:
    """Heads of 15 KiB that do not end."""
    sent = head("GET", f"{ROOT}/none", f"X-Filler: {'x' * 15_000}").removesuffix(b"\r\n")
    await attackers.hold(attackers.seconds / 2, 5_000, sent)


async def headers(attackers: Attackers) -> None:
    """Heads of 16 KiB with as many headers as they can have."""
    await flood(attackers, head("GET", f"{ROOT}/none?offset=-1", *["a:"] * 4_000))


async def chunks(attackers: Attackers) -> None:
    """Bodies in chunks of one byte, 250 KiB of them at once."""
    await flood(attackers, CHUNKED + b"1\r\nx\r\n" * 43_000 + b"0\r\n\r\n")


async def trailers(attackers: Attackers) -> None:
    """Trailers without an end, behind a chunked body."""
    await attackers.hold(attackers.seconds / 2, 60, CHUNKED + b"1\r\nx\r\n0\r\n" + b"aa:bb\r\n" * 73_000)


async def brief(attackers: Attackers) -> None:
    """Event streams of a stream that lives for a second, and does not end while it is read."""
    await attackers.put("brief", Stream_TTL="1")
    await attackers.hold(attackers.seconds / 2, 5_000, head("GET", f"{ROOT}/brief?offset=now&live=sse"))
