"""What user code is written with: apps, jobs, what a handler gets, and the work lease."""
