"""All attacks, by name."""

import asyncio
from functools import partial
from typing import Final

from tests.streams.attacks import connections, reads, subscriptions, writes
from tests.streams.attacks.attackers import HUNDRED, Attackers
from tests.streams.attacks.driver import Attack


async def _quiet(attackers: Attackers) -> None:
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
