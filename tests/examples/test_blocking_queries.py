"""The blocking queries, in tests of a user's own. Behind a server: `tests/end_to_end/test_uvicorn.py`."""

from starlette.testclient import TestClient

from examples.blocking_queries.app import app


def test_query_yields_the_value_at_its_deadline_and_wrong_parameters_are_refused() -> None:
    with TestClient(app) as client:
        assert client.get("/", params={"index": 0, "wait": 0}).json() == {"index": 0, "value": ""}
        for parameters in ({"index": "x"}, {"index": "0", "wait": "-1"}):
            assert client.get("/", params=parameters).status_code == 400
