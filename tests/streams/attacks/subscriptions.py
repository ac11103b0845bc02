"""Attacks by subscriptions: many streams, patterns that are hard to match, and webhooks that do not answer."""

import asyncio
import json
import time
from typing import Any

from tests.streams.attacks.attackers import JSON, SUBSCRIPTIONS, Attackers, greatest, repeat, spread
from tests.streams.hooks import Hook, listening

STREAMS = 10_000
DEEP = 300
PATTERNS = 100
RECEIVERS = 200
PATIENCE = 8.0
"""Seconds for a delivery: fewer than a receiver that hangs has for its answer."""


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
