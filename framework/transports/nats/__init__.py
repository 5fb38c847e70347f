"""NATS: JetStream by the protocol of clients. Of that between the servers of a cluster there is the wire (``route_wire``)."""
