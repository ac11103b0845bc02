"""An application below a path: mounted in another one, or behind a proxy that takes a part of the path away."""

from urllib.parse import quote, unquote

from starlette.types import Scope


def relative(scope: Scope) -> Scope:
    """The scope with `path` and `raw_path` as they would be without a prefix, which stays in `root_path`.

    By ASGI's specification `path` begins with `root_path`. Some frameworks take it away, from `raw_path` too or not.
    With hypercorn's `--root-path`, and with the `root_path` of FastAPI, `path` lacks what the proxy takes away. So it
    begins with the end of `root_path` alone: `/api/streams` is the prefix of `/streams/v1/stream/a`.
    """
    prefix: str = scope.get("root_path", "").rstrip("/")
    if not prefix:
        return scope
    path: str = scope["path"]
    included = prefix
    while included and not f"{path}/".startswith(f"{included}/"):
        _, slash, rest = included[1:].partition("/")
        included = slash + rest
    route = path[len(included) :]
    raw = _raw(scope, route, included, prefix)
    return {**scope, "root_path": prefix, "path": route, "raw_path": raw.encode("latin-1")}


def below_root(scope: Scope) -> Scope:
    """A relative scope as ASGI's specification has it: Starlette finds its routes by that."""
    return {**scope, "path": scope.get("root_path", "") + scope["path"]}


def _raw(scope: Scope, route: str, *prefixes: str) -> str:
    """The part of `raw_path` that is `route`, as the client has encoded it: it may have encoded slashes."""
    raw = (scope.get("raw_path") or b"").decode("latin-1")
    for prefix in (*prefixes, ""):
        parts = raw.split("/", prefix.count("/") + 1)
        found = f"/{parts[-1]}"
        if unquote(found) == route:
            return found
    return quote(route)
