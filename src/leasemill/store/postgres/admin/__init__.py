"""What an operator does to a schema: migrate, check, rebuild."""
