"""Draw the pictures of the performance pages from the measured figures: `python -m tests.docs.pictures`."""

from purgatory.bench.summary import draw, lines
from tests.docs.test_figures import MEASURED, headlines, measured


def main() -> None:
    """Draw them."""
    folder = MEASURED / "readme"
    draw(lines(measured(), "asyncio"), "asyncio", folder / "overview-asyncio.png")
    draw(headlines(), "asyncio", folder / "headline.png")


if __name__ == "__main__":
    main()
