"""The scenario `relay`: what each process spends on the changes of all others, and what the brokers bear."""
