"""Limits on PostgreSQL: how claims are granted under them, and what operators do to them."""
