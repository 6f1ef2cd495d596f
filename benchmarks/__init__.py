"""Measurements, one script for each question. Each prints its table and its bars, and exits 1 if one is missed."""
