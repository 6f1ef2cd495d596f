"""One migration for each version of the store's tables (`store/postgres/admin/schema`), by the same name.

A new version of the SQL needs its file here too: a test fails without it, and shows what to write.
"""
