"""Leasemill inside frameworks: one package for each, imported by those who use it alone."""
