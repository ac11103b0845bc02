"""Attacks on `purgatory serve`, each on a fresh server, while another client measures what it still gets.

python -m tests.streams.attacks --only events --short

probe          the other client, and the server's memory: a process of its own, which attackers don't slow down
server         the process that is attacked
attackers      what clients of bad will do: many requests, connections that are kept, answers that aren't read
reads, writes, subscriptions, connections, framings
               the attacks
every          all of them, by name
outcome        what an attack has done, the targets, and the tables
"""
