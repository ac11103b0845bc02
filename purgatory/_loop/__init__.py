"""What the timer and the operations stand on: the loop and its threads, its clock, slices of its time, and errors."""
