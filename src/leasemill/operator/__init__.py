"""Texts for people who run jobs: explanations, groups of failures, and how times and counts are written."""
