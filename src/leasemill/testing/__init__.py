"""What tests of Leasemill, and of programs that use it, need: shipped with the package.

Nothing here is imported by the rest of Leasemill, and nothing here imports pytest unless its module says so.
"""
