"""Attacks on `purgatory serve`, each on a fresh server, while another client measures what it still gets.

python -m tests.streams.attacks --only events --short

every          all attacks by name: by reads, writes, connections and subscriptions
attackers      what clients of bad will do: many requests, connections that are kept, answers that aren't read
driver         runs an attack on a process of its own, and keeps the outcome beside the targets
probe          the other client, and the server's memory: a process too, which attackers don't slow down
"""
