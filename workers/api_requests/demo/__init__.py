"""The whole pipeline from one command, on one machine."""
