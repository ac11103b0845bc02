"""Subscriptions: durable cursors of streams, which wake a worker when there is something to process.

A subscription is idle, or a wake is under way: that is delivered to a webhook, or written to a stream for workers to
claim. Each wake has the next generation, and a lease, within which its worker acknowledges what it has processed. What
belongs to an earlier wake is refused (PROTOCOL.md, 6 and 7).
"""

import hashlib
import json
import secrets
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final

from purgatory.streams.core import offsets, wakes
from purgatory.streams.core.commands import Command, T_co
from purgatory.streams.core.errors import Forbidden, Invalid, StreamsError
from purgatory.streams.core.globs import Glob
from purgatory.streams.core.state import Link, Linked, Subscription
from purgatory.streams.core.transaction import Transaction

PAGE: Final = 100
"""Streams of a view, unless it is asked for another number."""
_PATHS: Final = 2 * 1024 * 1024
"""Characters of the paths that a subscription begins with, at most: they are stored in one transaction."""
_CONFIG: Final = 1024
"""Longer configurations are stored as a digest, because each change writes them again. In characters."""
FIRST_RETRY: Final = 1.0
LAST_RETRY: Final = 60.0
FARTHEST: Final = 2 * LAST_RETRY
"""Seconds. An attempt that is due later was set by a clock that was wrong."""
RETRY_JITTER: Final = 0.2
"""Deliveries of a wake are tried again after a second, two, four and so on, all up to a fifth more or less."""


class SubscriptionNotFound(StreamsError):
    """There is no such subscription."""


class AlreadyExists(StreamsError):
    """There is a subscription with another configuration."""


class Fenced(StreamsError):
    """The wake is no longer the present one."""


class AlreadyClaimed(StreamsError):
    """Another worker has the lease."""

    def __init__(self, holder: str, generation: int) -> None:
        super().__init__("another worker has claimed the subscription")
        self.holder = holder
        self.generation = generation


class NoPendingWork(StreamsError):
    """There is nothing to claim."""


class InvalidOffset(StreamsError):
    """An offset that cannot be acknowledged."""


class TooManyLinks(Forbidden):
    """A subscription would exceed its greatest number of streams."""

    def __init__(self, limit: str = "") -> None:
        limit = limit or f"a subscription must not have more than {wakes.MAX_LINKS} streams"
        super().__init__(f"{limit}: use several, with narrower patterns")


@dataclass(frozen=True, slots=True)
class View:
    """A subscription with some of its streams."""

    subscription: Subscription
    streams: list[Linked]
    count: int
    """How many streams it has."""
    new: bool = False


def _find(transaction: Transaction, name: str) -> Subscription:
    subscription = transaction.subscription(name)
    if subscription is None:
        raise SubscriptionNotFound("there is no such subscription")
    return subscription


@dataclass(frozen=True, slots=True)
class _OfSubscription(Command[T_co]):
    """A command that is about one subscription. Its streams are found when the subscription is known."""

    id: str


@dataclass(frozen=True, slots=True)
class Subscribe(_OfSubscription[View]):
    """Create a subscription, or confirm that there is the same one already."""

    alone = True
    type: str
    pattern: str | None
    streams: tuple[str, ...]
    url: str | None
    wake_stream: str | None
    lease: float
    description: str | None
    limit: int | None = None
    """The greatest number of subscriptions."""
    matched: Collection[str] = ()
    """Paths that the pattern matches, of the streams with ids up to `matched_until`: they were looked up before."""
    matched_until: int = 0

    def apply(self, transaction: Transaction) -> View:
        """Raises `AlreadyExists`, `TooManyLinks`, or `Forbidden` if the limit of subscriptions is reached."""
        config = json.dumps(
            [
                *(self.type, self.pattern, sorted(set(self.streams))),
                *(self.url, self.wake_stream, self.lease, self.description),
            ]
        )
        digest = config if len(config) <= _CONFIG else f"sha256:{hashlib.sha256(config.encode()).hexdigest()}"
        existing = transaction.subscription(self.id)
        if existing is not None:
            if existing.config not in (digest, config):  # earlier versions have stored all of it
                raise AlreadyExists("the subscription exists already, with another configuration")
            return _view(transaction, existing, transaction.linked(self.id, "", PAGE))
        if self.limit is not None and transaction.subscription_count() >= self.limit:
            raise Forbidden(f"the limit of {self.limit} subscriptions is reached")
        glob = None if self.pattern is None else Glob(self.pattern)
        matched = set(self.matched)
        if glob is not None:
            matched.update(path for path in transaction.paths_after(self.matched_until) if glob.matches(path))
        explicit = set(self.streams)
        if len(matched | explicit) > wakes.MAX_LINKS:
            raise TooManyLinks
        if sum(map(len, matched | explicit)) > _PATHS:
            raise TooManyLinks(f"the paths of a new subscription's streams must not have more than {_PATHS} characters")
        subscription = Subscription(
            self.id,
            digest,
            self.type,
            self.pattern,
            self.url,
            self.wake_stream,
            self.lease,
            self.description,
            transaction.now,
            incarnation=secrets.randbits(62),
        )
        transaction.add_subscription(subscription, glob)
        tails = transaction.tails(matched | explicit)
        for path in explicit.union(path for path in matched if path in tails):
            link = Link(path in explicit, path in matched and path in tails, tails.get(path, 0))
            transaction.change_link(self.id, path, None, link)
        return _view(transaction, subscription, transaction.linked(self.id, "", PAGE), new=True)


def _view(transaction: Transaction, subscription: Subscription, streams: list[Linked], *, new: bool = False) -> View:
    return View(subscription.copy(), streams, transaction.link_count(subscription.id), new)


@dataclass(frozen=True, slots=True)
class Unsubscribe(_OfSubscription[None]):
    """Delete a subscription, if there is one."""

    def apply(self, transaction: Transaction) -> None:
        """Raises nothing."""
        if transaction.subscription(self.id) is not None:
            transaction.remove_subscription(self.id)


@dataclass(frozen=True, slots=True)
class LinkStreams(_OfSubscription[None]):
    """Add streams to a subscription."""

    alone = True
    streams: tuple[str, ...]

    def apply(self, transaction: Transaction) -> None:
        """Raises `SubscriptionNotFound` or `TooManyLinks`."""
        _find(transaction, self.id)
        paths = set(self.streams)
        links = transaction.links_to(self.id, paths)
        new = paths.difference(links)
        if new and transaction.link_count(self.id) + len(new) > wakes.MAX_LINKS:
            raise TooManyLinks
        for path, link in links.items():
            if not link.explicit:
                transaction.change_link(self.id, path, link, link._replace(explicit=True))
        tails = transaction.tails(new)
        for path in new:
            transaction.change_link(self.id, path, None, Link(True, False, tails.get(path, 0)))


@dataclass(frozen=True, slots=True)
class Unlink(_OfSubscription[None]):
    """Remove a stream from a subscription."""

    path: str

    def apply(self, transaction: Transaction) -> None:
        """Raises `SubscriptionNotFound`."""
        _find(transaction, self.id)
        link = transaction.link(self.id, self.path)
        if link is not None:
            transaction.change_link(self.id, self.path, link, link._replace(explicit=False) if link.glob else None)


@dataclass(frozen=True, slots=True)
class Look(_OfSubscription[View]):
    """Look at a subscription. It changes nothing, so you may apply it to a transaction that is not stored."""

    after: str = ""
    limit: int = PAGE
    """The first streams that follow `after`, so many at most."""

    def apply(self, transaction: Transaction) -> View:
        """Raises `SubscriptionNotFound`."""
        subscription = _find(transaction, self.id)
        return _view(transaction, subscription, transaction.linked(self.id, self.after, self.limit))


@dataclass(frozen=True, slots=True)
class Claim(_OfSubscription[View]):
    """Claim the wake of a pull-wake subscription for a worker."""

    worker: str

    def apply(self, transaction: Transaction) -> View:
        """Raises `SubscriptionNotFound`, `Invalid`, `AlreadyClaimed` or `NoPendingWork`."""
        subscription = _find(transaction, self.id)
        if subscription.type != "pull-wake":
            raise Invalid("the subscription must be of type pull-wake")
        if subscription.holder is not None and (subscription.lease_until or 0.0) <= transaction.now:
            wakes.end(transaction, subscription)  # before the look for what is due
            subscription = _find(transaction, self.id)
        if subscription.holder is not None:
            raise AlreadyClaimed(subscription.holder, subscription.generation)
        if subscription.wake is None:
            raise NoPendingWork("the subscription has no wake to claim")
        streams = wakes.in_wake(transaction, subscription)
        if not streams:
            raise NoPendingWork("the streams of the wake are deleted")
        subscription = transaction.change_subscription(subscription)
        subscription.holder = self.worker
        subscription.lease_until = transaction.now + subscription.lease
        return _view(transaction, subscription, streams)


@dataclass(frozen=True, slots=True)
class _OfWake(_OfSubscription[T_co]):
    """A command by the worker of a wake."""

    type: str
    wake: str
    generation: int
    token: tuple[int, int]
    """The incarnation and the generation of the worker's token."""

    def _check(self, transaction: Transaction) -> Subscription:
        subscription = _find(transaction, self.id)
        if subscription.type != self.type:
            raise Invalid(f"the subscription is of type {subscription.type}")
        if (subscription.incarnation, subscription.generation, subscription.generation, subscription.wake) != (
            *self.token,
            self.generation,
            self.wake,
        ):
            raise Fenced("the wake is over")
        return subscription


@dataclass(frozen=True, slots=True)
class Acknowledge(_OfWake[bool]):
    """Acknowledge the work of a worker, or show that it lives."""

    acks: tuple[tuple[str, str], ...] = field(default=())
    """Paths and offsets."""
    done: bool = False

    def apply(self, transaction: Transaction) -> bool:
        """Return whether another wake has begun.

        Raises `SubscriptionNotFound`, `Invalid`, `Fenced` or `InvalidOffset`.
        """
        subscription = self._check(transaction)
        paths = {path for path, _ in self.acks}
        links, tails = transaction.links_to(self.id, paths), transaction.tails(paths)
        acked: dict[str, int] = {}
        for path, offset in self.acks:
            try:
                position = offsets.parse(offset)
            except Invalid as error:
                raise InvalidOffset(str(error)) from None
            link = links.get(path)
            if link is None:
                raise InvalidOffset(f"{path} is no stream of the subscription")
            if position < acked.get(path, link.acked):
                raise InvalidOffset(f"the offset of {path} must not be before the one already acknowledged")
            if position > tails.get(path, 0):
                raise InvalidOffset(f"the offset of {path} must not be beyond its end")
            acked[path] = position
        for path, position in acked.items():
            transaction.change_link(self.id, path, links[path], links[path]._replace(acked=position))
        if self.done:
            return wakes.end(transaction, subscription)
        subscription = transaction.change_subscription(subscription)
        subscription.lease_until = transaction.now + subscription.lease
        return False


@dataclass(frozen=True, slots=True)
class Release(_OfWake[None]):
    """Give the wake of a worker back."""

    def apply(self, transaction: Transaction) -> None:
        """Raises `SubscriptionNotFound`, `Invalid` or `Fenced`."""
        wakes.end(transaction, self._check(transaction))


@dataclass(frozen=True, slots=True)
class Lapse(_OfSubscription[None]):
    """End the wake if its lease is over.

    A lease that ends later than one that begins now was granted by a clock that was wrong: it is made as long as that.
    """

    def apply(self, transaction: Transaction) -> None:
        """Does nothing if the lease was extended meanwhile."""
        subscription = transaction.subscription(self.id)
        if subscription is None or subscription.lease_until is None:
            return
        if subscription.lease_until <= transaction.now:
            wakes.end(transaction, subscription)
        elif subscription.lease_until > transaction.now + subscription.lease:
            transaction.change_subscription(subscription).lease_until = transaction.now + subscription.lease


@dataclass(frozen=True, slots=True)
class Delivery:
    """A wake to be delivered to a webhook."""

    view: View
    attempt: int


@dataclass(frozen=True, slots=True)
class Deliver(_OfSubscription[Delivery | None]):
    """Take the delivery of a wake, if it is due: no other process takes it then."""

    patience: float
    """Seconds in which the webhook answers. Another attempt comes later than that."""

    def apply(self, transaction: Transaction) -> Delivery | None:
        """Return the wake, or `None`."""
        subscription = transaction.subscription(self.id)
        if subscription is None or subscription.wake is None or subscription.attempt_at is None:
            return None
        if transaction.now < subscription.attempt_at <= transaction.now + FARTHEST:
            return None
        streams = wakes.in_wake(transaction, subscription)
        if not streams:
            return None
        subscription = transaction.change_subscription(subscription)
        subscription.attempt_at = transaction.now + 2 * self.patience
        return Delivery(_view(transaction, subscription, streams), subscription.attempts)


@dataclass(frozen=True, slots=True)
class Delivered(_OfSubscription[None]):
    """Note whether a webhook has answered."""

    wake: str
    ok: bool
    done: bool = False
    """Whether all of the wake is processed."""

    def apply(self, transaction: Transaction) -> None:
        """Does nothing if the wake is over."""
        subscription = transaction.subscription(self.id)
        if subscription is None or subscription.wake != self.wake:
            return
        subscription = transaction.change_subscription(subscription)
        if not self.ok:
            delay = min(LAST_RETRY, FIRST_RETRY * 2 ** min(subscription.attempts, 10))
            delay *= 1 + RETRY_JITTER * (2 * secrets.randbelow(1001) / 1000 - 1)
            subscription.attempts += 1
            subscription.attempt_at = transaction.now + delay
            return
        subscription.attempts = 0
        subscription.attempt_at = None
        if self.done:
            for each in transaction.woken(self.id):
                assert each.link.woken is not None
                after = each.link._replace(acked=each.link.woken)
                transaction.change_link(self.id, each.path, each.link, after)
            wakes.end(transaction, subscription)
