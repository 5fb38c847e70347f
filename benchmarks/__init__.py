"""Rates and CPU beside other Python clients of NSQ, on a real nsqd. How to run and to read it: README.md here."""
