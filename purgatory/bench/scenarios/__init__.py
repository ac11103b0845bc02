"""One module each: the cases of a scenario, and the measurement of one."""
