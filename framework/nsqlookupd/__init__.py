"""The embedded nsqlookupd: which nsqd has which topic, told by nsqds over TCP and asked over HTTP. It keeps nothing on disk."""
