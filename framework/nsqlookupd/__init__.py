"""The embedded nsqlookupd: who has which topic, told by nsqds over TCP and asked for over HTTP. It keeps nothing on disk."""
