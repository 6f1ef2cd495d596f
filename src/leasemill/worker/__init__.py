"""The worker: claims jobs, runs their handlers, keeps their leases alive, reports how they ended.

It knows the Store protocol and handlers, and nothing of what is behind the store. `leasemill.Worker` is the way in.
"""
