"""The attacks, shortened: what they cost in bytes, and what everybody is answered. Times are for the command."""

import pytest

from tests.streams.attacks.driver import run
from tests.streams.attacks.every import EVERY

ANSWERS = {200, 201, 204, 409}
REFUSALS = {400, 403, 404, 405, 408, 413, 429, 431, 501, 503}
"""403 is one stream or subscription too many."""
FEWER = {"quiet", "events-25", "stalled-8", "unread-8"}
"""What others do with more clients."""


@pytest.mark.parametrize("name", [name for name in EVERY if name not in FEWER])
def test_no_client_stops_another(name: str) -> None:
    outcome = run(name, short=True)
    assert outcome.failures == []
    # Without descriptors, the other client's new connections are refused as those of the attackers.
    allowed = {"none", "503"} if name == "descriptors" else {"none"}
    assert set(outcome.refusals) <= allowed, "another client was refused"
    statuses = {int(status) for status in outcome.statuses if status not in ("none", "waiting")}
    assert statuses <= ANSWERS | REFUSALS, outcome.statuses
