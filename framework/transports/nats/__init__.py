"""NATS: its two protocols so far, that of clients (``wire``) and that between the servers of a cluster (``route_wire``)."""
