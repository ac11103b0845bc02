"""The scenario `relay`: what each process spends on the changes of all others, and what the brokers bear.

brokers     Redis and PostgreSQL, started for a measurement, and a broker between threads
publisher   a process that publishes changes at a steady rate
hearing     a process that hears them
"""
