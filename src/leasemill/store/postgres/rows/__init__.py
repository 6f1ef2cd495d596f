"""Rows of the tables, as the kernel knows what they hold: columns, values, jobs."""
