"""Pictures of the page for README: .venv/bin/python -m tests.streams.screenshots [DIR]"""

import io
import sys
import tempfile
import time
from pathlib import Path

import httpx
from PIL import Image

from tests.streams.pages import Page
from tests.streams.processes import running
from tests.support.browser import browser
from tests.support.paths import ROOT

PENDING = 5000
VIEWS = {
    "light": ("light", 1440, 1440, 1.0),
    "dark": ("dark", 1440, 1030, 1.0),
    "phone": ("light", 390, 844, 2.0),
}
APPENDS = [
    ("news", "text/plain", "The wheel turns.\n"),
    ("news", "text/plain", "An append in one tab appears in all others.\n"),
    ("orders", "application/json", '{"order": 1041, "items": ["tea", "cups"], "paid": true}'),
    ("orders", "application/json", '{"order": 1042, "items": ["kettle"], "paid": false}'),
    ("news", "text/plain", "Grüße aus dem Fegefeuer!\n"),
    ("jobs/resize-7", "application/octet-stream", "…"),
]


def fill(url: str) -> None:
    with httpx.Client(base_url=url) as client:
        for path, kind, data in APPENDS:
            headers = {"Content-Type": kind}
            client.put(f"/v1/stream/{path}", headers=headers).raise_for_status()
            client.post(f"/v1/stream/{path}", headers=headers, content=data.encode()).raise_for_status()
        client.post("/v1/stream/jobs/resize-7", headers={"Stream-Closed": "true"}).raise_for_status()
        client.put("/v1/demo", json={"pending": PENDING}).raise_for_status()


def main(directory: Path) -> None:
    with (
        tempfile.TemporaryDirectory() as scratch,
        running(Path(scratch) / "data", "--demo", "--instance", "example") as server,
        browser(Path(scratch) / "profile") as driver,
    ):
        page = Page(driver, server.url)
        fill(server.url)
        time.sleep(15)  # until as many have finished as to make a picture
        driver.execute_cdp_cmd("Emulation.setScrollbarsHidden", {"hidden": True})
        for name, (scheme, width, height, scale) in VIEWS.items():
            page.resize(width, height, scale)
            features = [{"name": "prefers-color-scheme", "value": scheme}]
            driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
            page.open("#follow=news,orders")
            page.until(lambda: page.number("[data-counter=num_delayed]") > 0.9 * PENDING)
            time.sleep(4)
            # Of few colours: half as large, without a visible difference.
            picture = Image.open(io.BytesIO(driver.get_screenshot_as_png())).convert("RGB")
            picture.quantize(256, kmeans=1, dither=Image.Dither.NONE).save(directory / f"{name}.png", optimize=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if sys.argv[1:] else ROOT / "purgatory/streams/screenshots")
