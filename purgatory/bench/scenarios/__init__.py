"""The scenarios of the core: their cases, and the measurement of one."""
