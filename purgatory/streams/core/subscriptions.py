"""Subscriptions: durable cursors of streams, which wake a worker when there is something to process.

A subscription is idle, or a wake is under way: that is delivered to a webhook, or written to a stream for workers to
claim. Each wake has the next generation, and a lease, within which its worker acknowledges what it has processed. What
belongs to an earlier wake is refused (PROTOCOL.md, 6 and 7).
"""

import json
import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Final

from purgatory.streams.core import globs, messages, offsets
from purgatory.streams.core.errors import Forbidden, Invalid, StreamsError
from purgatory.streams.core.state import Link, Stream, Subscription

if TYPE_CHECKING:
    from purgatory.streams.core.transaction import Transaction

__all__ = [
    "Acknowledge",
    "AlreadyClaimed",
    "AlreadyExists",
    "Claim",
    "Deliver",
    "Delivered",
    "Delivery",
    "Fenced",
    "InvalidOffset",
    "Lapse",
    "LinkStreams",
    "Look",
    "NoPendingWork",
    "Release",
    "Subscribe",
    "SubscriptionNotFound",
    "Unlink",
    "Unsubscribe",
    "View",
    "appended",
    "forget",
]

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
    """The wake is not the one that is under way."""


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


@dataclass(frozen=True, slots=True)
class Linked:
    """A stream of a subscription, as its worker sees it."""

    path: str
    link: Link
    tail: int

    @property
    def is_pending(self) -> bool:
        """Whether there is something to process."""
        return self.tail > self.link.acked

    def short(self) -> dict[str, Any]:
        """As the subscription itself shows it."""
        acked = offsets.BEFORE_ALL if self.link.acked < 0 else offsets.encode(self.link.acked)
        return {
            "path": self.path,
            "link_type": "explicit" if self.link.explicit else "glob",
            "acked_offset": acked,
        }

    def whole(self) -> dict[str, Any]:
        """As a worker gets it."""
        return {**self.short(), "tail_offset": offsets.encode(self.tail), "has_pending": self.is_pending}


@dataclass(frozen=True, slots=True)
class View:
    """A subscription with its streams."""

    subscription: Subscription
    streams: list[Linked]
    new: bool = False


def appended(transaction: "Transaction", stream: Stream) -> None:
    """Something was appended to `stream`: wake the subscriptions that are idle."""
    transaction.grown.append(stream.path)
    _settle(transaction)


def _settle(transaction: "Transaction") -> None:
    """Wake the subscriptions of what has grown, wake streams among it."""
    while transaction.grown:
        path = transaction.grown.popleft()
        for subscription in transaction.subscribers(path):
            if path not in transaction.links_of(subscription.id):
                if subscription.pattern is None or not globs.matches(subscription.pattern, path):
                    continue
                transaction.links[subscription.id, path] = Link(False, True, -1)
            _wake(transaction, subscription)


def forget(transaction: "Transaction", path: str) -> None:
    """The stream at `path` is deleted: another one there begins at its beginning."""
    for subscription in transaction.subscribers(path):
        link = transaction.links_of(subscription.id).get(path)
        if link is None:
            continue
        transaction.links[subscription.id, path] = Link(True, link.glob, 0) if link.explicit else None
        is_idle = subscription.type == "pull-wake" and subscription.holder is None
        if is_idle and not any(each.is_pending for each in _streams(transaction, subscription.id)):
            _end(transaction, subscription)  # nothing is left to claim: the next append begins another wake


def _streams(transaction: "Transaction", subscription: str) -> list[Linked]:
    links = transaction.links_of(subscription)
    return [Linked(path, link, _tail(transaction, path)) for path, link in sorted(links.items())]


def _tail(transaction: "Transaction", path: str) -> int:
    return transaction.tail(path)


def _wake(transaction: "Transaction", subscription: Subscription) -> bool:
    """Begin a wake, if the subscription is idle and there is something to process."""
    if subscription.wake is not None:
        return False
    streams = _streams(transaction, subscription.id)
    pending = next((each.path for each in streams if each.is_pending), None)
    if pending is None:
        return False
    subscription = transaction.change_subscription(subscription)
    subscription.generation += 1
    subscription.wake = f"w_{secrets.token_hex(12)}"
    for each in streams:
        transaction.links[subscription.id, each.path] = each.link._replace(woken=each.tail)
    if subscription.type == "webhook":
        subscription.lease_until = transaction.now + subscription.lease
        subscription.attempt_at = max(transaction.now, subscription.attempt_at or 0.0)
    else:
        _write_wake(transaction, subscription, pending)
    return True


def _write_wake(transaction: "Transaction", subscription: Subscription, pending: str) -> None:
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
    rows = messages.parse(stream.media_type, json.dumps(event).encode())
    stream = transaction.change(stream)
    transaction.append(stream, rows)
    transaction.grown.append(stream.path)


def _end(transaction: "Transaction", subscription: Subscription) -> bool:
    """End the wake, and begin another one if there is more to process. Returns whether there is."""
    subscription = transaction.change_subscription(subscription)
    subscription.wake = subscription.holder = subscription.lease_until = None
    if not subscription.attempts:  # else the next wake waits as this one would have
        subscription.attempt_at = None
    if _wake(transaction, subscription):
        _settle(transaction)
        return True
    subscription.attempts = 0
    subscription.attempt_at = None
    return False


def _find(transaction: "Transaction", name: str) -> Subscription:
    subscription = transaction.subscription(name)
    if subscription is None:
        raise SubscriptionNotFound("there is no such subscription")
    return subscription


@dataclass(frozen=True, slots=True)
class _OfSubscription:
    """A command that is about one subscription."""

    id: str

    alone: ClassVar[bool] = False
    """Whether no stream may change meanwhile, in another process."""

    @property
    def paths(self) -> tuple[str, ...]:
        """No paths: the streams are found when the subscription is known."""
        return ()


@dataclass(frozen=True, slots=True)
class Subscribe(_OfSubscription):
    """Create a subscription, or confirm that there is the same one already."""

    alone = True
    type: str
    pattern: str | None
    streams: tuple[str, ...]
    url: str | None
    wake_stream: str | None
    lease: float
    description: str | None
    most: int | None = None
    """How many subscriptions there may be."""

    def apply(self, transaction: "Transaction") -> View:
        """Raises `AlreadyExists`, or `Forbidden` if the limit of subscriptions is reached."""
        config = json.dumps(
            [
                *(self.type, self.pattern, sorted(set(self.streams))),
                *(self.url, self.wake_stream, self.lease, self.description),
            ]
        )
        known = transaction.subscription(self.id)
        if known is not None:
            if known.config != config:
                raise AlreadyExists("the subscription exists already, with another configuration")
            return View(known.copy(), _streams(transaction, self.id))
        known_count = transaction.source.subscription_count() + len(transaction.subscriptions)
        if self.most is not None and known_count >= self.most:
            raise Forbidden(f"the limit of {self.most} subscriptions is reached")
        subscription = Subscription(
            self.id,
            config,
            self.type,
            self.pattern,
            self.url,
            self.wake_stream,
            self.lease,
            self.description,
            transaction.now,
            incarnation=secrets.randbits(62),
        )
        transaction.subscriptions[self.id] = subscription
        if self.pattern is not None:
            for path in transaction.all_paths():
                if globs.matches(self.pattern, path):
                    transaction.links[self.id, path] = Link(False, True, _tail(transaction, path))
        for path in self.streams:
            _link(transaction, self.id, path)
        return View(subscription.copy(), _streams(transaction, self.id), True)


def _link(transaction: "Transaction", subscription: str, path: str) -> None:
    link = transaction.links_of(subscription).get(path)
    if link is None:
        link = Link(True, False, _tail(transaction, path))
    transaction.links[subscription, path] = link._replace(explicit=True)


@dataclass(frozen=True, slots=True)
class Unsubscribe(_OfSubscription):
    """Delete a subscription, if there is one."""

    def apply(self, transaction: "Transaction") -> None:
        """Raises nothing."""
        if transaction.subscription(self.id) is not None:
            for path in transaction.links_of(self.id):
                transaction.links[self.id, path] = None
            transaction.subscriptions[self.id] = None


@dataclass(frozen=True, slots=True)
class LinkStreams(_OfSubscription):
    """Name streams of a subscription."""

    alone = True
    streams: tuple[str, ...]

    def apply(self, transaction: "Transaction") -> None:
        """Raises `SubscriptionNotFound`."""
        _find(transaction, self.id)
        for path in self.streams:
            _link(transaction, self.id, path)


@dataclass(frozen=True, slots=True)
class Unlink(_OfSubscription):
    """Name a stream no longer."""

    path: str

    def apply(self, transaction: "Transaction") -> None:
        """Raises `SubscriptionNotFound`."""
        _find(transaction, self.id)
        link = transaction.links_of(self.id).get(self.path)
        if link is not None:
            transaction.links[self.id, self.path] = link._replace(explicit=False) if link.glob else None


@dataclass(frozen=True, slots=True)
class Look(_OfSubscription):
    """Look at a subscription."""

    def apply(self, transaction: "Transaction") -> View:
        """Raises `SubscriptionNotFound`."""
        return View(_find(transaction, self.id).copy(), _streams(transaction, self.id))


@dataclass(frozen=True, slots=True)
class Claim(_OfSubscription):
    """A worker takes the wake of a pull-wake subscription."""

    worker: str

    def apply(self, transaction: "Transaction") -> View:
        """Raises `SubscriptionNotFound`, `Invalid`, `AlreadyClaimed` or `NoPendingWork`."""
        subscription = _find(transaction, self.id)
        if subscription.type != "pull-wake":
            raise Invalid("the subscription is not of type pull-wake")
        if subscription.holder is not None and (subscription.lease_until or 0.0) <= transaction.now:
            _end(transaction, subscription)  # before the look for what is due
            subscription = _find(transaction, self.id)
        if subscription.holder is not None:
            raise AlreadyClaimed(subscription.holder, subscription.generation)
        if subscription.wake is None:
            raise NoPendingWork("the subscription has no wake to claim")
        subscription = transaction.change_subscription(subscription)
        subscription.holder = self.worker
        subscription.lease_until = transaction.now + subscription.lease
        return View(subscription.copy(), _streams(transaction, self.id))


@dataclass(frozen=True, slots=True)
class _OfWake(_OfSubscription):
    """A command by the worker of a wake."""

    type: str
    wake: str
    generation: int
    token: tuple[int, int]
    """The incarnation and the generation of the worker's token."""

    def _check(self, transaction: "Transaction") -> Subscription:
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
class Acknowledge(_OfWake):
    """A worker has processed something, or lives."""

    acks: tuple[tuple[str, str], ...] = field(default=())
    """Paths and offsets."""
    done: bool = False

    def apply(self, transaction: "Transaction") -> bool:
        """Returns whether another wake has begun.

        Raises `SubscriptionNotFound`, `Invalid`, `Fenced` or `InvalidOffset`.
        """
        subscription = self._check(transaction)
        links = transaction.links_of(self.id)
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
                raise InvalidOffset(f"the offset of {path} is before the one that is acknowledged")
            if position > _tail(transaction, path):
                raise InvalidOffset(f"the offset of {path} is beyond its end")
            acked[path] = position
        for path, position in acked.items():
            transaction.links[self.id, path] = links[path]._replace(acked=position)
        if self.done:
            return _end(transaction, subscription)
        subscription = transaction.change_subscription(subscription)
        subscription.lease_until = transaction.now + subscription.lease
        return False


@dataclass(frozen=True, slots=True)
class Release(_OfWake):
    """A worker gives the wake back."""

    def apply(self, transaction: "Transaction") -> None:
        """Raises `SubscriptionNotFound`, `Invalid` or `Fenced`."""
        _end(transaction, self._check(transaction))


@dataclass(frozen=True, slots=True)
class Lapse(_OfSubscription):
    """End the wake if its lease is over.

    A lease that ends later than one that begins now was granted by a clock that was wrong: it is made as long as that.
    """

    def apply(self, transaction: "Transaction") -> None:
        """Does nothing if the lease was extended meanwhile."""
        subscription = transaction.subscription(self.id)
        if subscription is None or subscription.lease_until is None:
            return
        if subscription.lease_until <= transaction.now:
            _end(transaction, subscription)
        elif subscription.lease_until > transaction.now + subscription.lease:
            transaction.change_subscription(subscription).lease_until = transaction.now + subscription.lease


@dataclass(frozen=True, slots=True)
class Delivery:
    """A wake to be delivered to a webhook."""

    view: View
    attempt: int


@dataclass(frozen=True, slots=True)
class Deliver(_OfSubscription):
    """Take the delivery of a wake, if it is due: no other process takes it then."""

    patience: float
    """Seconds in which the webhook answers. Another attempt comes later than that."""

    def apply(self, transaction: "Transaction") -> Delivery | None:
        """Returns the wake, or `None`."""
        subscription = transaction.subscription(self.id)
        if subscription is None or subscription.wake is None or subscription.attempt_at is None:
            return None
        if transaction.now < subscription.attempt_at <= transaction.now + FARTHEST:
            return None
        subscription = transaction.change_subscription(subscription)
        subscription.attempt_at = transaction.now + 2 * self.patience
        return Delivery(View(subscription.copy(), _streams(transaction, self.id)), subscription.attempts)


@dataclass(frozen=True, slots=True)
class Delivered(_OfSubscription):
    """A webhook has answered, or has not."""

    wake: str
    ok: bool
    done: bool = False
    """Whether all of the wake is processed."""

    def apply(self, transaction: "Transaction") -> None:
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
            for path, link in transaction.links_of(self.id).items():
                if link.woken is not None and link.woken > link.acked:
                    transaction.links[self.id, path] = link._replace(acked=link.woken)
            _end(transaction, subscription)
