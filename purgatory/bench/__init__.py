"""`purgatory bench`: this library beside today's alternatives, and beside the design before Kafka's redesign.

    case        a case of a scenario: its implementation, event loop and parameters
    scenarios/  one module each: the cases of a scenario, and the measurement of one
    streams/    the same for `purgatory serve`, beside the reference server
    rivals      the implementations that ours are compared with
    stalls      the longest iteration of a loop
    find        the modules of the scenarios; `every` has the scenarios
    runner      every case in a process of its own, alternately, in several rounds
    report      ratios and tables of the measured figures, as JSON and Markdown
    summary     the headlines in one table
    plots       pictures
    command     the command line

A speed on a busy machine means little by itself. So the implementations are measured alternately, round by round. The
result is the ratio of two figures of the same round, and its spread over the rounds.
"""
