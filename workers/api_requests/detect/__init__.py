"""Finds out what requests mean: how they grow, and who abuses the site; the handler ``blocking`` puts these on the block list."""
