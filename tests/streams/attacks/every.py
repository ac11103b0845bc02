"""All attacks, by name."""

import asyncio
import contextlib
import json
import random
import re
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any, Final

from tests.streams.attacks.attackers import (
    HUNDRED,
    MIB,
    ONE,
    SUBSCRIPTIONS,
    Attackers,
    Connections,
    flood,
    greatest,
    head,
    repeat,
    spread,
)
from tests.streams.hooks import Hook, listening
from tests.streams.processes import JSON, ROOT

CLIENTS = 32
SLOW_READERS = 500
POLLS = 1_000
STREAMS = 10_000
DEEP = 300
PATTERNS = 100
RECEIVERS = 200
KEPT = 300 * 1024
"""Bytes that come behind each long poll."""
FILES = 512
PATIENCE = 8.0
"""Seconds for a delivery: fewer than a receiver that hangs has for its answer."""
TYPE = "Content-Type: text/plain"
QUIET = f"{ROOT}/quiet?offset=now&live=long-poll"
CHUNKED = head("POST", f"{ROOT}/none", TYPE, "Transfer-Encoding: chunked")


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


async def stalled(attackers: Attackers, writers: int, addresses: Iterable[str] = ONE) -> None:
    """Bodies as large as the server takes, which stop before their end."""
    size = await attackers.fill("large", b"x", 16 * MIB)
    attackers.notes.append(f"bodies of {size:,} bytes")
    sent = head("POST", f"{ROOT}/large", TYPE, f"Content-Length: {size}") + b"x" * (size - 10)
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
    await flood(attackers, head("POST", f"{ROOT}/rows", TYPE, "Content-Length: 1") + b".", clients=64)
    begin = time.monotonic()
    await attackers.request("DELETE", f"{ROOT}/rows")
    attackers.notes.append(f"{attackers.statuses['204']:,} appends, deleted in {time.monotonic() - begin:.2f} s")


async def refused(attackers: Attackers) -> None:
    """Appends as long as the server takes, to a stream that does not exist."""
    await repeat(attackers.seconds, 2, lambda client, number: attackers.post("none", b"x" * MIB))


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


async def subscribe(attackers: Attackers, name: str, **wanted: Any) -> int:
    """Make a subscription of workers that pull, unless `wanted` says otherwise. Returns the status."""
    body = json.dumps({"type": "pull-wake", "wake_stream": "wakes", **wanted}).encode()
    return (await attackers.request("PUT", f"{SUBSCRIPTIONS}/{name}", body, **JSON))[0]


async def links(attackers: Attackers) -> None:
    """Subscriptions to as many named streams as the server takes, and appends to some of these streams."""
    names = [f"s{number}" for number in range(STREAMS)]
    for name in names[:10]:
        await attackers.put(name)
    length = await greatest(STREAMS, lambda count: subscribe(attackers, "first", streams=names[:count]))
    attackers.notes.append(f"{length:,} streams in a subscription")

    async def another(client: int, number: int) -> None:
        if client:
            await attackers.post(names[client], b".")
        else:
            await subscribe(attackers, f"more-{number}", streams=names[:length])

    await repeat(attackers.seconds, 9, another)
    await attackers.request("GET", f"{SUBSCRIPTIONS}/first")


async def everything(attackers: Attackers) -> None:
    """Subscriptions with the pattern `**`, where there are many streams."""
    count = 1_000 if attackers.short else 20_000
    await spread(count, 64, lambda number: attackers.put(f"s{number}"))
    attackers.notes.append(f"{count:,} streams")
    for number in range(3 if attackers.short else 10):
        await subscribe(attackers, f"all-{number}", pattern="**")
        await attackers.post("s1", b".")
    await attackers.request("GET", f"{SUBSCRIPTIONS}/all-0")


async def patterns(attackers: Attackers) -> None:
    """Patterns with many `**`, where the paths of streams have many segments."""
    depth = await greatest(500, lambda depth: attackers.put(_path(0, depth)))
    await spread(DEEP, 8, lambda number: attackers.put(_path(number, depth)))
    length = await greatest(600, lambda length: subscribe(attackers, "deep-0", pattern=_pattern(length)))
    attackers.notes.append(f"patterns of {length} segments, {DEEP} streams of {depth}")
    for number in range(1, 10):
        await subscribe(attackers, f"deep-{number}", pattern=_pattern(length, f"{number}"))


async def matching(attackers: Attackers) -> None:
    """Appends to a stream with many segments, where a hundred subscriptions have patterns with many `**`."""
    length = await greatest(600, lambda length: subscribe(attackers, "deep-0", pattern=_pattern(length)))
    await spread(PATTERNS, 8, lambda number: subscribe(attackers, f"more-{number}", pattern=_pattern(length)))
    depth = await greatest(500, lambda depth: attackers.put(_path(0, depth)))
    attackers.notes.append(f"{PATTERNS} patterns of {length} segments, streams of {depth}")
    await spread(8, 8, lambda number: attackers.put(_path(number, depth)))
    await repeat(attackers.seconds / 2, 8, lambda client, number: attackers.post(_path(client, depth), b"."))


def _path(number: int, depth: int) -> str:
    return "a/" * (depth - 1) + str(number)


def _pattern(length: int, last: str = "b") -> str:
    return "/".join(["**", "a"] * (length // 2) + [last])


async def webhooks(attackers: Attackers) -> None:
    """Receivers that take a delivery and never answer, while another subscription has one that answers."""

    async def subscribe_to(stream: str, number: int, hook: Hook, host: str = "127.0.0.1") -> None:
        url = {"url": f"http://{host}:{hook.port}/"}
        await subscribe(attackers, f"{stream}-{number}", type="webhook", pattern=stream, webhook=url)

    hanging, answering = Hook(*["hang"] * 10 * RECEIVERS), Hook()
    async with listening(hanging, answering, host="0.0.0.0"):
        await attackers.put("hung")
        await attackers.put("news")
        hosts = [f"127.0.3.{number}" for number in range(1, RECEIVERS + 1)]
        await spread(RECEIVERS, 8, lambda number: subscribe_to("hung", number, hanging, hosts[number]))
        await subscribe_to("news", 0, answering)
        await attackers.post("hung", b".")
        await asyncio.sleep(0.5)
        begin = time.monotonic()
        await attackers.post("news", b".")
        patience = attackers.limit / 2 if attackers.short else PATIENCE
        while not answering.calls and time.monotonic() < begin + patience:  # noqa: ASYNC110 - of another process
            await asyncio.sleep(0.01)
        seen = f"after {time.monotonic() - begin:.2f} s" if answering.calls else f"not within {patience:g} s"
        attackers.check(f"a delivery to another receiver: {seen}", ok=bool(answering.calls))


async def bodies(attackers: Attackers) -> None:
    """Subscriptions whose bodies are as long as the server takes, and take long to parse."""

    async def nested(count: int) -> int:
        body = b"[%b[]]" % (b"[]," * count)
        status, _ = await attackers.request("PUT", f"{SUBSCRIPTIONS}/nested", body, **JSON)
        return 200 if status == 400 else status  # what is wrong with a body that is parsed needs no shorter one

    size = await greatest(350_000, nested)
    attackers.notes.append(f"bodies of {3 * size:,} bytes")
    await repeat(attackers.seconds, 15, lambda client, number: nested(size))


async def shared_wakes(attackers: Attackers) -> None:
    """Subscriptions with one wake stream, which their pattern matches too."""
    await attackers.put("wakes", **JSON)
    await attackers.put("news", **JSON)
    count = 100 if attackers.short else 1_000
    end = time.monotonic() + attackers.seconds
    while time.monotonic() < end:
        await spread(count, 8, lambda number: subscribe(attackers, f"all-{number}", pattern="**"))
        await attackers.post("news", b"1", **JSON)
        await spread(count, 8, lambda number: attackers.request("DELETE", f"{SUBSCRIPTIONS}/all-{number}"))


async def _quiet(attackers: Attackers) -> None:
    await asyncio.sleep(attackers.seconds / 2)


@dataclass(frozen=True, slots=True)
class Attack:
    """An attack, and what its server needs."""

    run: Callable[[Attackers], Awaitable[None]]
    files: int | None = None
    """The server's limit of open files. Where it has one, the probe has to wait."""
    options: tuple[str, ...] = ()


EVERY: Final[dict[str, Attack]] = {
    "quiet": Attack(_quiet),
    "events-25": Attack(partial(events, readers=25)),
    "events-200": Attack(partial(events, readers=200)),
    "middle": Attack(middle),
    "subscriptions-links": Attack(links),
    "subscriptions-everything": Attack(everything),
    "globs-patterns": Attack(patterns),
    "globs-matching": Attack(matching),
    "forks": Attack(forks),
    "rows": Attack(rows),
    "stalled-8": Attack(partial(stalled, writers=8)),
    "stalled-200": Attack(partial(stalled, writers=200)),
    "stalled-hundred": Attack(partial(stalled, writers=800, addresses=HUNDRED)),
    "unread-8": Attack(partial(unread, readers=8)),
    "unread-200": Attack(partial(unread, readers=200)),
    "unread-hundred": Attack(partial(unread, readers=800, addresses=HUNDRED)),
    "webhooks": Attack(webhooks, options=("--local-webhooks",)),
    "parked-heads": Attack(heads),
    "parked-behind": Attack(behind),
    "descriptors": Attack(descriptors, files=FILES),
    "slow-readers": Attack(slow_readers),
    "small-events": Attack(small_events),
    "places": Attack(places),
    "polls": Attack(polls),
    "refused": Attack(refused),
    "heads-incomplete": Attack(incomplete),
    "headers": Attack(headers),
    "chunks": Attack(chunks),
    "trailers": Attack(trailers),
    "brief": Attack(brief),
    "bodies": Attack(bodies),
    "shared-wakes": Attack(shared_wakes),
}
