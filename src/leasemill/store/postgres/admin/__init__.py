"""The operators' work on a schema: migrate, check, rebuild."""
