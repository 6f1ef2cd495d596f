"""Enqueue and commit inside transactions of the user's."""
