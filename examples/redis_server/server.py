"""A small server of Redis's protocol. A client that blocks has no task, and a connection that is idle rests."""

import asyncio
import inspect
import sys
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial, partialmethod
from typing import Any
from weakref import WeakValueDictionary

import hiredis
import uvloop

from purgatory import DelayedOperation, DelayedOperationPurgatory
from purgatory.connections import QuietConnections

MOST_UNREAD = 32 * 2**20  # bytes that a client may leave unread, and also bytes that it may send while it blocks


class Error(Exception): ...  # what a wrong command answers


def encoded(answer: Any) -> bytes:
    match answer:
        case bytes():
            return b"$%d\r\n%b\r\n" % (len(answer), answer)
        case list():
            return b"*%d\r\n%b" % (len(answer), b"".join(map(encoded, answer)))
        case int():
            return b":%d\r\n" % answer
        case str():
            return b"+%b\r\n" % answer.encode()
        case Error():
            return b"-%b\r\n" % str(answer).encode()
    return b"$-1\r\n"


class Blocked(DelayedOperation[Any]):
    """A command that waits until `find` returns an answer."""

    __slots__ = ("answer", "client", "find")

    def __init__(self, client: "Client", find: Callable[[], Any], timeout: float) -> None:
        super().__init__(timeout or None)  # 0 means forever
        self.client, self.find, self.answer = client, find, None

    def try_complete(self) -> bool:
        self.answer = self.find()
        return self.answer is not None and self.force_complete()

    def on_complete(self) -> Any:
        return self.answer

    def on_done(self) -> None:
        if self.outcome != "cancelled":  # otherwise the client has left
            self.client.unblock(self.result())


class Server:
    """The data, and the commands, which are the methods without an underscore in front."""

    def __init__(self) -> None:
        self.data: dict[bytes, Any] = {}  # strings, lists and streams, but no empty ones
        self.waiting = DelayedOperationPurgatory("blocked clients")
        self.channels: WeakValueDictionary[bytes, set[Client]] = WeakValueDictionary()  # those that have a subscriber
        self.connections = QuietConnections()
        methods = {name.encode(): getattr(self, name) for name in vars(Server) if name[0] != "_"}
        self.commands = {name: (method, inspect.signature(method)) for name, method in methods.items()}

    def _value(self, key: bytes, kind: type) -> Any:
        value = self.data.get(key, kind())
        if not isinstance(value, kind):
            raise Error("WRONGTYPE Operation against a key holding the wrong kind of value")
        return value

    def _put(self, key: bytes, value: Any, answer: Any) -> Any:
        self.data[key] = value
        self.waiting.check_and_complete(key)  # those who have waited longest look first
        return answer

    def ping(self, client: "Client") -> str:
        return "PONG"

    def get(self, client: "Client", key: bytes) -> Any:
        return self._value(key, bytes) if key in self.data else None

    def set(self, client: "Client", key: bytes, value: bytes) -> Any:
        return self._put(key, value, "OK")

    def llen(self, client: "Client", key: bytes) -> int:
        return len(self._value(key, deque))

    def lrange(self, client: "Client", key: bytes, first: bytes, last: bytes) -> Any:
        return list(self._value(key, deque))[int(first) : int(last) + 1 or None]

    def _push(self, extend: Callable[..., None], client: "Client", key: bytes, item: bytes, *more: bytes) -> Any:
        extend(items := self._value(key, deque), [item, *more])
        return self._put(key, items, len(items))

    def _pop(self, pop: Callable[..., bytes], client: "Client", key: bytes) -> Any:
        return self._find_item(pop, key)[1] if self._value(key, deque) else None

    def _block_to_pop(self, pop: Callable[..., bytes], client: "Client", key: bytes, last: bytes, *more: bytes) -> Any:
        keys = [key, last, *more][:-1]
        for each in keys:
            self._value(each, deque)
        find = partial(self._find_item, pop, *keys)
        return self.waiting.try_complete_else_watch(Blocked(client, find, float([last, *more][-1])), keys)

    def _find_item(self, pop: Callable[..., bytes], *keys: bytes) -> Any:
        for key in keys:
            if isinstance(items := self.data.get(key), deque):
                item = pop(items)
                if not items:
                    del self.data[key]
                return [key, item]
        return None

    lpush, rpush = partialmethod(_push, deque.extendleft), partialmethod(_push, deque.extend)
    lpop, rpop = partialmethod(_pop, deque.popleft), partialmethod(_pop, deque.pop)
    blpop, brpop = partialmethod(_block_to_pop, deque.popleft), partialmethod(_block_to_pop, deque.pop)

    def xadd(self, client: "Client", key: bytes, star: bytes, *fields: bytes) -> Any:
        stream = self._value(key, list)
        stream.append([*fields])  # its id is its number in the stream
        return self._put(key, stream, b"%d-0" % len(stream))

    def xread(self, client: "Client", *words: bytes) -> Any:
        names = [word.lower() for word in words]
        begin = names.index(b"streams")
        options = dict(zip(names[:begin:2], words[1:begin:2], strict=False))
        middle = begin + 1 + (len(words) - begin) // 2
        after = {}
        for key, id_ in zip(words[begin + 1 : middle], words[middle:], strict=False):
            length = len(self._value(key, list))
            after[key] = length if id_ == b"$" else int(id_.split(b"-")[0])
        find = partial(self._find_entries, after, int(options.get(b"count", b"1000000")))
        if b"block" not in options:
            return find()
        return self.waiting.try_complete_else_watch(Blocked(client, find, int(options[b"block"]) / 1000), after)

    def _find_entries(self, after: dict[bytes, int], count: int) -> Any:
        found = []
        for key, last in after.items():
            if isinstance(stream := self.data.get(key), list) and len(stream) > last:
                entries = enumerate(stream[last : last + count], last + 1)
                found.append([key, [[b"%d-0" % id_, fields] for id_, fields in entries]])
        return found or None

    def subscribe(self, client: "Client", channel: bytes, *more: bytes) -> Any:
        answers = []
        for name in (channel, *more):
            client.channels[name] = self.channels.setdefault(name, set())
            client.channels[name].add(client)
            answers.append([b"subscribe", name, len(client.channels)])
        return tuple(answers)

    def unsubscribe(self, client: "Client", *channels: bytes) -> Any:
        answers = []
        for name in channels or [*client.channels] or [b""]:
            client.channels.pop(name, set()).discard(client)
            answers.append([b"unsubscribe", name or None, len(client.channels)])
        return tuple(answers)

    def publish(self, client: "Client", channel: bytes, message: bytes) -> int:
        for subscriber in (subscribers := [*self.channels.get(channel, ())]):
            subscriber.send([b"message", channel, message])
        return len(subscribers)


class Client(asyncio.Protocol):
    __slots__ = ("blocked", "channels", "reader", "server", "transport")

    def __init__(self, server: Server) -> None:
        self.server = server
        self.reader: hiredis.Reader | None = None  # of commands that are not complete, or not executed yet
        self.blocked: Blocked | None = None
        self.channels: dict[bytes, set[Client]] = {}

    def connection_made(self, transport: Any) -> None:
        self.transport: Any = self.server.connections.add(transport)
        self.transport.rest(1.0)

    def data_received(self, data: bytes) -> None:
        self.reader = self.reader or hiredis.Reader()
        self.reader.feed(data)
        self.proceed()

    def proceed(self) -> None:
        """Execute the commands that have come, until one blocks."""
        while self.reader is not None and self.blocked is None and not self.transport.is_closing():
            try:
                command = self.reader.gets()
            except (MemoryError, hiredis.ProtocolError):
                self.transport.close()
                break
            if command is False:
                break
            self.reader = self.reader if self.reader.has_data() else None
            answer = self.execute(command)
            if not isinstance(answer, Blocked):
                self.send(answer)
            elif answer.outcome is None:
                self.blocked = answer
        if self.reader is not None and self.reader.len() > MOST_UNREAD:
            self.transport.abort()
        self.transport.rest(0.0 if self.blocked is not None else 1.0)

    def execute(self, command: Any) -> Any:
        if not isinstance(command, list) or {*map(type, command)} != {bytes}:
            return Error("ERR a command must be an array of strings")
        try:
            method, signature = self.server.commands[command[0].lower()]
            signature.bind(self, *command[1:])
        except (KeyError, TypeError):
            return Error(f"ERR unknown command or wrong number of arguments: {command[0]!r}")
        try:
            return method(self, *command[1:])
        except (Error, OverflowError, ValueError) as error:
            return error if isinstance(error, Error) else Error("ERR syntax error, or not a number or out of range")

    def send(self, answer: Any) -> None:
        answers = answer if isinstance(answer, tuple) else (answer,)
        self.transport.write(b"".join(map(encoded, answers)))
        if self.transport.get_write_buffer_size() > MOST_UNREAD:
            self.transport.abort()

    def unblock(self, answer: Any) -> None:
        self.blocked = None
        self.send(answer)
        asyncio.get_running_loop().call_soon(self.proceed)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.blocked is not None:
            self.blocked.cancel()
        self.server.unsubscribe(self)


async def main(port: int) -> None:
    server = Server()
    await asyncio.get_running_loop().create_server(lambda: Client(server), "127.0.0.1", port, backlog=4096)
    print(f"listening on 127.0.0.1:{port}", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        uvloop.run(main(int(sys.argv[1])))
