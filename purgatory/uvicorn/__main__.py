"""`python -m purgatory.uvicorn app:app …`: uvicorn with its own options, and with requests that are parked."""

from collections.abc import Iterator
from typing import Any

import click
from uvicorn import main

try:
    from purgatory.uvicorn.faults import faults
except ImportError:  # a uvicorn that is not known
    from purgatory.uvicorn import ParkingProtocol

    def faults(http: str, loop: str) -> Iterator[str]:
        """Say why nothing will be parked."""
        yield ParkingProtocol.fault  # type: ignore[attr-defined]


@click.pass_context
def _tell_and_run(context: click.Context, /, **options: Any) -> None:
    for fault in faults(options["http"], options["loop"]):
        click.secho(f"WARNING:  {fault}", fg="yellow", err=True)
    assert _run is not None
    context.invoke(_run, **options)


_run = main.callback
if __name__ == "__main__":
    main.callback = _tell_and_run
    main(default_map={"http": "purgatory.uvicorn:ParkingProtocol"}, prog_name="python -m purgatory.uvicorn")
