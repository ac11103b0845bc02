"""All attacks, by name, and how one of them runs."""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import quantiles
from typing import Final

import aiohttp

from tests.streams.attacks import connections, framings, reads, subscriptions, writes
from tests.streams.attacks.attackers import HUNDRED, Attackers
from tests.streams.attacks.outcome import Outcome
from tests.streams.attacks.server import Server, attacked

__all__ = ["EVERY", "Attack", "run"]


@dataclass(frozen=True, slots=True)
class Attack:
    """An attack, and what its server needs."""

    run: Callable[[Attackers], Awaitable[None]]
    files: int | None = None
    """The server's limit of open files. Where it has one, the probe has to wait."""
    options: tuple[str, ...] = ()


async def _quiet(attackers: Attackers) -> None:
    """Nothing, for comparison."""
    await asyncio.sleep(attackers.seconds / 2)


EVERY: Final[dict[str, Attack]] = {
    "quiet": Attack(_quiet),
    "events-25": Attack(partial(reads.events, readers=25)),
    "events-200": Attack(partial(reads.events, readers=200)),
    "middle": Attack(reads.middle),
    "subscriptions-links": Attack(subscriptions.links),
    "subscriptions-everything": Attack(subscriptions.everything),
    "globs-patterns": Attack(subscriptions.patterns),
    "globs-matching": Attack(subscriptions.matching),
    "forks": Attack(writes.forks),
    "rows": Attack(writes.rows),
    "stalled-8": Attack(partial(writes.stalled, writers=8)),
    "stalled-200": Attack(partial(writes.stalled, writers=200)),
    "stalled-hundred": Attack(partial(writes.stalled, writers=800, addresses=HUNDRED)),
    "unread-8": Attack(partial(reads.unread, readers=8)),
    "unread-200": Attack(partial(reads.unread, readers=200)),
    "unread-hundred": Attack(partial(reads.unread, readers=800, addresses=HUNDRED)),
    "webhooks": Attack(subscriptions.webhooks, options=("--local-webhooks",)),
    "parked-heads": Attack(connections.heads),
    "parked-behind": Attack(connections.behind),
    "descriptors": Attack(connections.descriptors, files=connections.FILES),
    "odd": Attack(framings.odd),
    "slow-readers": Attack(reads.slow_readers),
    "small-events": Attack(reads.small_events),
    "places": Attack(reads.places),
    "polls": Attack(reads.polls),
    "refused": Attack(writes.refused),
    "heads-incomplete": Attack(connections.incomplete),
    "headers": Attack(connections.headers),
    "chunks": Attack(connections.chunks),
    "trailers": Attack(connections.trailers),
    "brief": Attack(connections.brief),
    "bodies": Attack(subscriptions.bodies),
    "shared-wakes": Attack(subscriptions.shared_wakes),
}


def run(name: str, python: str, short: bool = False, options: Sequence[str] = ()) -> Outcome:
    """Run an attack on a fresh server: `python -m purgatory serve` with these options."""
    attack = EVERY[name]
    begin = time.monotonic()
    with attacked(python, [*options, *attack.options], attack.files) as server:
        attackers = asyncio.run(_run(attack, server, short))
        if server.process.poll() is not None:
            attackers.check("the server", f"ended with {server.process.returncode}", "runs", False)
        measured = server.measured()
        appends = [seconds for seconds, _ in measured["appends"]]
        answers = [*measured["reads"], *measured["appends"]]
        refusals = Counter(str(status or "none") for _, status in answers if status not in (200, 204))
        return Outcome(
            name,
            time.monotonic() - begin,
            measured["begin"],
            measured["memory"],
            longest=max(seconds for seconds, _ in answers),
            p99=quantiles(appends, n=100, method="inclusive")[98] if len(appends) > 1 else max(appends),
            refusals=dict(sorted(refusals.items())),
            statuses=dict(sorted(attackers.statuses.items())),
            without_retry_after=attackers.without_retry_after,
            tracebacks=server.log.count("Traceback"),
            notes=attackers.notes,
            checks=attackers.checks,
            timed=attack.files is None,
        )


async def _run(attack: Attack, server: Server, short: bool) -> Attackers:
    connector = aiohttp.TCPConnector(local_addr=("127.0.0.1", 0), limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=60)) as session:
        attackers = Attackers(server, session, short)
        try:
            async with asyncio.timeout(attackers.limit):
                await attack.run(attackers)
        except TimeoutError:
            attackers.notes.append(f"broken off after {attackers.limit:g} s")
        return attackers
