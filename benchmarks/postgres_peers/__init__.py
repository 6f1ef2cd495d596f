"""The systems `benchmarks.postgres` measures, each a small program that speaks the lines of `peer.py` (`peer.mjs`)."""
