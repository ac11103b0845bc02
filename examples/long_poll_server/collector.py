"""The garbage collector, as a server wants it that holds very many requests."""

import gc


def tune() -> None:
    """Look at young objects in small portions, and at all objects hardly ever.

    With 10,000 requests that wait, a look at all objects holds up the loop for 0.8 seconds, and came every few seconds
    by Python's own settings. It found nothing: what a request leaves goes without the collector, and its few cycles go
    while they are young.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(5_000, 10, 2_000)
