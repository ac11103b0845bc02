"""Other people's frameworks, servers and loops around responses that wait, in processes of their own."""

import asyncio
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.asgi.processes import serving
from tests.docs.test_readmes import blocks
from tests.support.paths import ROOT

UVICORN = ROOT / "purgatory" / "uvicorn"
PAGE = UVICORN / "APPLICATIONS.md"
WORKER = blocks(PAGE, "python")[0]
GUNICORN = ["gunicorn", "--worker-class", "worker.ParkingWorker", "--bind", "127.0.0.1:0"]
AROUND = ["plain", "cors", "gzip", "session", "tracing", "metrics"]
FRAMEWORKS = ["FastAPI", "Starlette", "Litestar", "Quart", "Django"]


async def answers(client: httpx.AsyncClient) -> list[tuple[bool, Any]]:
    """Whether the request behind each middleware was parked, and its answer without what is new each time."""
    found = []
    for name in AROUND:
        before = (await client.get("/state")).json()["parked"]
        answer = await client.get(f"/{name}/wait", headers={"Origin": "http://a.example", "Accept-Encoding": "gzip"})
        after = (await client.get("/state")).json()["parked"]
        headers = {key: value for key, value in answer.headers.items() if key not in ("date", "server", "set-cookie")}
        cookies = [cookie.partition("=")[0] for cookie in answer.headers.get_list("set-cookie")]
        found.append((after > before, (answer.status_code, headers, cookies, answer.text)))
    return found


async def row(framework: str, *command: str) -> list[tuple[bool, Any]]:
    with serving(*command, "tests.asgi.frameworks:app", FRAMEWORK=framework) as server:
        async with server.client() as client:
            return await answers(client)


@pytest.mark.asyncio(loop_factories=["asyncio"])
async def test_table_of_applications(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "worker.py").write_text(WORKER)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{ROOT}")
    lines = [f"| | {' | '.join(AROUND)} |", f"|{' --- |' * (len(AROUND) + 1)}"]
    for framework in [*FRAMEWORKS, "gunicorn, FastAPI"]:
        options = ["--lifespan", "off", "--port", "0"]
        parking = ["purgatory.uvicorn", *options] if framework in FRAMEWORKS else GUNICORN
        name = framework.rpartition(" ")[2]
        plain, parked = await asyncio.gather(row(name, "uvicorn", *options), row(name, *parking))
        assert [answer for _, answer in parked] == [answer for _, answer in plain]
        assert all(answer[0] == 200 and answer[3] == "waited" for _, answer in parked)
        assert not any(was_parked for was_parked, _ in plain)
        cells = ["parked" if was_parked else "a task waits" for was_parked, _ in parked]
        lines.append(f"| {framework} | {' | '.join(cells)} |")
    table = "\n".join(lines)
    sys.stdout.write(table)
    written = re.search(r"<!-- applications -->\n(.*?)\n?<!-- /applications -->", PAGE.read_text(), re.DOTALL)
    assert written is not None
    assert written[1] == table


COUNTED = """
import json
from app import app as inner
from purgatory.asgi import parking_statistics

async def app(scope, receive, send):
    if scope.get("path") == "/state":
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": json.dumps(parking_statistics().parked).encode()})
    else:
        await inner(scope, receive, send)
"""


@pytest.mark.asyncio(loop_factories=["asyncio"])
@pytest.mark.parametrize("framework", ["Litestar", "Django", "Quart"])
class TestFrameworksWhoseHandlersCannotReturnTheResponse:
    async def test_program_of_the_page(self, framework: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        program = blocks(ROOT / "purgatory" / "asgi" / f"{framework.upper()}.md", "python")[0]
        (tmp_path / "app.py").write_text(program)
        (tmp_path / "counted.py").write_text(COUNTED)
        monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{ROOT}")
        lifespan = "off" if framework == "Django" else "on"
        with serving("purgatory.uvicorn", "--port", "0", "--lifespan", lifespan, "counted:app") as server:
            async with server.client() as client:
                waiting = [asyncio.create_task(client.get("/notes?seen=0")) for _ in range(2)]
                while (await client.get("/state")).json() < 2:
                    pass
                method, path = ("GET", "/write") if framework == "Django" else ("POST", "/notes")
                assert (await client.request(method, path, params={"note": "hello"})).status_code < 300
                assert [(await each).json() for each in waiting] == [["hello"]] * 2
                assert (await client.get("/notes?seen=0")).json() == ["hello"]
                assert (await client.get("/nothing")).status_code == 404

                last = asyncio.create_task(client.get("/notes?seen=1"))
                while (await client.get("/state")).json() < 3:
                    pass
                server.process.terminate()
                assert (await last).json() == []
            await server.end()

    async def test_returned_response_is_an_error_and_its_operation_is_cancelled(self, framework: str) -> None:
        command = ["purgatory.uvicorn", "--port", "0", "--lifespan", "off", "tests.asgi.frameworks:app"]
        with serving(*command, FRAMEWORK=framework) as server:
            async with server.client() as client:
                assert (await client.get("/plain/returned")).status_code == 500
                while (await client.get("/state")).json()["pending"]:
                    pass

    async def test_what_the_pages_say_of_hooks_and_of_tasks(self, framework: str) -> None:
        command = ["purgatory.uvicorn", "--port", "0", "--lifespan", "off", "tests.asgi.frameworks:app"]
        with serving(*command, FRAMEWORK=framework) as server:
            async with server.client() as client:

                async def state() -> Any:
                    return (await client.get("/state")).json()

                waiting = asyncio.create_task(client.get("/plain/wait"))
                while not (during := await state())["pending"] and not waiting.done():
                    pass
                if not waiting.done():
                    assert during["hooks"] == 1  # before the wait
                assert (await waiting).text == "waited"
                assert (await state())["hooks"] == 1
                parked = (await state())["parked"]
                if framework == "Litestar":
                    assert (await client.get("/plain/mounted")).text == "waited"
                    assert (await state())["parked"] == parked
                else:
                    gone = asyncio.create_task(client.get("/plain/awaits"))
                    while not (await state())["pending"]:
                        pass
                    gone.cancel()
                    while (await state())["pending"]:
                        pass


@pytest.mark.asyncio(loop_factories=["asyncio"])
async def test_gunicorn_answers_parked_requests_at_sigterm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "worker.py").write_text(WORKER)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{ROOT}")
    with serving(*GUNICORN, "--workers", "2", "tests.asgi.apps:starlette") as server:
        async with server.client() as client:
            await server.until_waiting(0)
            waiting = [asyncio.create_task(client.get(path)) for path in ("/delayed", "/events") * 4]
            states = await server.until_waiting(8)
            assert not any(state["not_parked"] for state in states)
            server.process.terminate()
            assert {(await each).text for each in waiting} == {'"answered"', "data:answered\n\n"}
        assert "Traceback" not in await server.end()


class TestWhatCannotPark:
    @pytest.mark.parametrize(
        ("options", "because"),
        [
            (["--http", "h11"], "because of --http h11"),
            (["--http", "uvicorn.protocols.http.h11_impl:H11Protocol"], "because of --http uvicorn"),
            (["--loop", "rloop:new_event_loop"], "because the event loop rloop.loop.RLoop can't replace the protocol"),
            (["--loop", "uvloop"], None),
        ],
    )
    def test_command_says_so_at_the_start(self, options: list[str], because: str | None) -> None:
        with serving("purgatory.uvicorn", "--port", "0", *options, "tests.asgi.apps:starlette") as server:
            said = [line for line in server.output if "requests that wait are not parked" in line]
            assert len(said) == (because is not None)
            assert because is None or because in said[0]

    @pytest.mark.asyncio(loop_factories=["asyncio"])
    async def test_on_a_loop_that_cannot_replace_protocols_tasks_wait(self) -> None:
        """And a client that goes is noticed, keep-alive works, and SIGTERM ends the server."""
        options = ["--port", "0", "--loop", "rloop:new_event_loop", "tests.asgi.apps:starlette"]
        with serving("purgatory.uvicorn", *options) as server:
            async with server.client() as client:
                waiting, gone = (asyncio.create_task(client.get("/delayed")) for _ in range(2))
                states = await server.until_waiting(2)
                assert states[0]["not_parked"] == 2
                gone.cancel()
                await server.until_waiting(1)
                await asyncio.sleep(0.3)  # longer than a connection needs to settle
                assert (await client.get("/complete")).json() == 1
                assert (await waiting).json() == "answered"
                last = asyncio.create_task(client.get("/events"))
                await server.until_waiting(1)
                server.process.terminate()
                assert (await last).text == "data:answered\n\n"
            log = "".join(server.output) + await server.end()
        assert "Traceback" not in log
        assert log.count("requests that wait are not parked") == 2  # at the start, and for other ways to start it


def test_sentry_records_the_same_with_parking() -> None:
    """In a process of its own, because Sentry changes Starlette's classes."""
    command = [sys.executable, "-m", "tests.uvicorn.with_sentry"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    plain, parking = done.stdout.splitlines()
    assert plain == parking == "sentry got ['GET: ok after the wait']"
    assert "because sentry_sdk." in done.stderr
    assert "leave it so" in done.stderr
