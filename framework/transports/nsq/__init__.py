"""NSQ, native: the TCP V2 protocol, nsqlookupd and the HTTP APIs. Found by ``open_transports`` through ``transport``."""
