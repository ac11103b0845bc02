"""The list of streams."""

import json
from typing import Final

from starlette.responses import Response
from starlette.types import Receive, Scope

from purgatory.streams.admission import Refusal
from purgatory.streams.http import requests
from purgatory.streams.http.endpoint import Endpoint
from purgatory.streams.http.replies import Reply

LIST: Final = "/v1/streams"


class ListEndpoint(Endpoint):
    """Answers `GET /v1/streams?prefix=&after=&limit=100`: streams in the order of their paths."""

    async def answer(self, scope: Scope, receive: Receive) -> Response:
        """The response to a request. Raises the reason of a refusal."""
        if scope["method"] not in ("GET", "HEAD"):
            raise Refusal(405, f"method {scope['method']} is not allowed", [(b"allow", b"GET, HEAD")])
        parameters = requests.query(scope)
        limit = requests.page_limit(parameters)
        prefix, after = (parameters.get(name, [""])[-1].replace("\0", "") for name in ("prefix", "after"))
        streams = await self.streams.store.read(lambda database: database.listed(prefix, after, limit))
        shown = [
            {
                "path": each.path,
                "content_type": each.content_type,
                "next_offset": each.next_offset,
                "closed": each.closed,
                "ttl": each.ttl,
                "expires_at": each.deadline,
            }
            for each in streams
        ]
        body = json.dumps({"streams": shown}, ensure_ascii=False, separators=(",", ":")).encode()
        return Reply(200, [(b"content-type", b"application/json"), (b"cache-control", b"no-store")], body)
