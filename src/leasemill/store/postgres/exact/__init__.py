"""The exact path: the kernel decides, on the rows a command concerns, under their locks."""
