"""`purgatory bench`: this library beside what people use today, and beside the design that Kafka's purgatory replaced.

    case        what is to be measured: a scenario's implementation, event loop and parameters
    scenarios/  one module each: which cases there are, and how one is measured
    rivals      the implementations that ours are compared with
    stalls      the longest turn of a loop
    runner      every case in a process of its own, in turn, several rounds
    report      ratios and tables of what was measured, as JSON and Markdown
    summary     what matters most of it
    plots       pictures
    command     the command line

Speeds on a machine that does other things too mean little by themselves. So all implementations are measured in
turn, round by round, and what counts is the ratio of two that were measured in the same round, and its spread over the
rounds.
"""
