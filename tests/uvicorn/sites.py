"""Datasette on two databases and a folder of files, for `uvicorn --factory`."""

import os
from pathlib import Path
from typing import Any

from datasette.app import Datasette

__all__ = ["datasette"]


def datasette() -> Any:
    """Datasette's own ASGI application, on what is in the folder of the environment variable SITE."""
    site = Path(os.environ["SITE"])
    queries = {"add": {"sql": "insert into notes (text) values (:text)", "write": True}}
    return Datasette(
        [str(site / "notes.db")],
        immutables=[str(site / "shop.db")],
        metadata={"databases": {"notes": {"queries": queries}}},
        static_mounts=[("files", str(site / "files"))],
        secret="the same one on each server",
    ).app()
