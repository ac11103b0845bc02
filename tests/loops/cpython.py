"""CPython's own tests of asyncio, on event loops whose timers are on wheels: `python -m tests.loops.cpython MODULE…`.

Without arguments it runs all modules of `test.test_asyncio`. A test that fails is run again, up to twice, since many of
them measure the time of a busy machine. The last line of the output is JSON: how many tests ran, how many timers they
set on wheels, and the names of those that failed each time.
"""

import json
import sys
import unittest
from contextlib import suppress
from pathlib import Path
from typing import Final

from test import support, test_asyncio  # type: ignore[import-not-found]

from tests.loops import replacement

ATTEMPTS: Final = 3


def modules() -> list[str]:
    """The names of the test modules."""
    return sorted(path.stem for path in Path(test_asyncio.__path__[0]).glob("test_*.py"))


def run(names: list[str]) -> tuple[int, list[str]]:
    """How many of these tests or of the tests of these modules were run, and the names of those that failed."""
    suite = unittest.TestSuite()
    for name in names:
        with suppress(unittest.SkipTest):  # the module is for another system
            suite.addTest(unittest.defaultTestLoader.loadTestsFromName(f"test.test_asyncio.{name}"))
    result = unittest.TextTestRunner(sys.stderr).run(suite)
    failed = [test for test, _ in result.failures + result.errors] + result.unexpectedSuccesses
    tests = {getattr(test, "test_case", test).id() for test in failed}  # of a subtest the test
    return result.testsRun, sorted(test.removeprefix("test.test_asyncio.") for test in tests)


def main() -> None:
    """Run the tests."""
    replacement.install()
    support.use_resources = []  # not the network
    count, failed = run(sys.argv[1:] or modules())
    for _ in range(ATTEMPTS - 1):
        _, failed = run(failed)
    print(json.dumps({"tests": count, "timers": replacement.timers, "failed": failed}))  # noqa: T201 - a command


if __name__ == "__main__":
    main()
