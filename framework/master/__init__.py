"""Several processes of one worker, and the master that keeps them at work; it runs no handler, and imports no app."""
