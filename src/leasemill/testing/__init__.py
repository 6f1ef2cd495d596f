"""What tests of Leasemill, and of programs that use it, need: shipped with the package.

Of the rest of Leasemill only the command line imports from here, and only the conformance suite imports pytest.
"""
