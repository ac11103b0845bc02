"""`purgatory bench`: this library beside today's alternatives.

    registry    the scenarios, by name
    case        a case of a scenario: its implementation, event loop and parameters
    scenarios/  one module each: the cases of a scenario, and the measurement of one
    web/        the scenarios with servers over HTTP
    server/     those of `purgatory serve`, beside the reference server
    rivals      the implementations that ours are compared with
    stalls      the longest iteration of a loop
    client      clients of servers, very many in a process
    processes   servers in processes of their own
    runner      every case in a process of its own, alternately, in several rounds
    worker      the measurement of one case
    report      ratios and tables of the measured figures, as JSON and Markdown
    summary     the headlines in one table
    plots       pictures
    command     the command line

A speed on a busy machine means little by itself. So the implementations are measured alternately, round by round. The
result is the ratio of two figures of the same round, and its spread over the rounds.
"""
