"""Helpers for tests of Leasemill, and of programs that use it: shipped with the package.

Of the rest of Leasemill only the command line imports from here, and only the conformance suite imports pytest.
"""
