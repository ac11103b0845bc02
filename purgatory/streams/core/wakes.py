"""When wakes of subscriptions begin and end: an idle subscription is woken by what is appended to its streams."""

import json
import secrets
from typing import Final

from purgatory.streams.core import messages
from purgatory.streams.core.state import Link, Linked, Stream, Subscription
from purgatory.streams.core.transaction import Transaction

MAX_LINKS: Final = 10_000
"""Streams of a subscription, at most. What ends a wake looks at all of them."""
WAKE: Final = 100
"""Streams in a wake, at most. If more are pending, the next wake has them."""


def appended(transaction: Transaction, stream: Stream) -> None:
    """Wake the idle subscriptions of a stream, because something was appended to it."""
    if not transaction.subscription_count():
        return
    transaction.grown[stream.path] = None
    _settle(transaction)


def _settle(transaction: Transaction) -> None:
    """Wake the subscriptions of what has grown, wake streams among it."""
    while transaction.grown:
        path, _ = transaction.grown.popitem(last=False)
        for subscription, link in transaction.subscribers(path):
            if link is None:
                if transaction.link_count(subscription.id) >= MAX_LINKS:
                    transaction.full.add(subscription.id)
                    continue
                link = Link(False, True, -1)
                transaction.change_link(subscription.id, path, None, link)
            linked = Linked(path, link, transaction.tail(path))
            if subscription.wake is None and linked.is_pending:
                _begin(transaction, subscription, [linked])


def forget(transaction: Transaction, path: str) -> None:
    """Reset the links to a deleted stream, because another one at `path` begins at its beginning.

    A wake of which nothing is left ends when it is claimed or delivered.
    """
    for subscription, link in transaction.subscribers(path):
        if link is not None:
            after = Link(True, link.glob, 0) if link.explicit else None
            transaction.change_link(subscription.id, path, link, after)


def _begin(transaction: Transaction, subscription: Subscription, pending: list[Linked]) -> None:
    """Begin a wake of an idle subscription."""
    subscription = transaction.change_subscription(subscription)
    subscription.generation += 1
    subscription.wake = f"w_{secrets.token_hex(12)}"
    _put_in_wake(transaction, subscription, pending)
    if subscription.type == "webhook":
        subscription.lease_until = transaction.now + subscription.lease
        subscription.attempt_at = max(transaction.now, subscription.attempt_at or 0.0)
    else:
        _write_wake(transaction, subscription, pending[0].path)


def _put_in_wake(transaction: Transaction, subscription: Subscription, pending: list[Linked]) -> None:
    for each in pending:
        transaction.change_link(subscription.id, each.path, each.link, each.link._replace(woken=each.tail))


def in_wake(transaction: Transaction, subscription: Subscription) -> list[Linked]:
    """Return the streams of the wake, which ends if there are none."""
    woken = transaction.woken(subscription.id)
    if not woken:  # they were deleted
        woken = transaction.pending(subscription.id, WAKE)
        _put_in_wake(transaction, subscription, woken)
    if not woken:
        end(transaction, subscription)
    return woken


def _write_wake(transaction: Transaction, subscription: Subscription, pending: str) -> None:
    """Append to the wake stream. If there is none, or it takes none, workers can still claim."""
    assert subscription.wake_stream is not None
    stream = transaction.stream(subscription.wake_stream)
    if stream is None or stream.deleted or stream.closed:
        return
    event = {
        "type": "wake",
        "subscription_id": subscription.id,
        "stream": pending,
        "generation": subscription.generation,
        "ts": int(1000 * transaction.now),
    }
    rows, units = messages.parse(stream.media_type, json.dumps(event).encode())
    stream = transaction.change(stream)
    transaction.append(stream, rows, units)
    transaction.grown[stream.path] = None


def end(transaction: Transaction, subscription: Subscription) -> bool:
    """End the wake, and begin another one if there is more to process. Return whether there is."""
    subscription = transaction.change_subscription(subscription)
    subscription.wake = subscription.holder = subscription.lease_until = None
    if not subscription.attempts:  # else the next wake waits as this one would have
        subscription.attempt_at = None
    pending = transaction.pending(subscription.id, WAKE)
    if pending:
        paths = {each.path for each in pending}
        for each in transaction.woken(subscription.id):
            if each.path not in paths:  # else it would count as a stream of the next wake
                transaction.change_link(subscription.id, each.path, each.link, each.link._replace(woken=None))
        _begin(transaction, subscription, pending)
        _settle(transaction)
        return True
    subscription.attempts = 0
    subscription.attempt_at = None
    return False
