"""The names that user code is written with: apps, jobs, the context of a handler, and the work lease."""
