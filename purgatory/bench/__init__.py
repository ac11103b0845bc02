"""`purgatory bench`: this library beside today's alternatives.

`case` names the scenarios. Their modules are in `scenarios/`, `web/` (over HTTP) and `server/` (`purgatory serve`).
`runner` measures every case in a process of its own, alternately, and `report` compares the figures.

A speed on a busy machine means little on its own. So the result is the ratio of two figures of the same round, and its
spread over the rounds.
"""
