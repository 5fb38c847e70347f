"""What the pipeline found, for people: figures, a page, pictures."""
