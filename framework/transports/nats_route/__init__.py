"""A peer of a NATS cluster: handlers take messages, and publish them, by the protocol that the servers speak to one another."""
