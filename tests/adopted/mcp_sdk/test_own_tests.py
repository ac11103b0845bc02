"""The MCP SDK's own tests of subscriptions and of streamable HTTP pass with its listeners as operations."""

import sys
from pathlib import Path

import pytest

from tests.support import brought
from tests.support.paths import ROOT

VERSION = "2.3.0"
HERE = Path(__file__).parent
NEEDS = ["blockbuster", "logfire", "inline-snapshot", "dirty-equals", "pytest-examples", "trio"]
TESTS = [
    "tests/server/test_subscriptions.py",
    "tests/server/test_streamable_http_manager.py",
    "tests/server/test_streamable_http_modern.py",
    "tests/server/test_streamable_http_router.py",
    "tests/server/test_streamable_http_security.py",
    "tests/shared/test_streamable_http.py",
    "tests/interaction/lowlevel/test_subscriptions.py",
    "tests/interaction/mcpserver/test_subscriptions.py",
    "tests/docs_src/test_subscriptions.py",
]


@pytest.mark.timeout(1200)
def test_the_own_tests_of_the_sdk_pass(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = brought.source("mcp", tmp_path, VERSION)
    done = brought.run(
        source,
        *("-o", "addopts=", "-o", "log_cli=false", *TESTS),
        plugins=["anyio.pytest_plugin", "inline_snapshot.pytest_plugin", "logfire.testing", "port"],
        paths=[HERE, brought.install(tmp_path / "needs", *NEEDS), ROOT],
    )
    passed, served = brought.counts(done, "listeners served as operations")
    with capsys.disabled():
        sys.stdout.write(f"\nmcp {VERSION}: {passed} passed, {served} listeners were operations\n")
    assert passed > 200
    assert served > 0
