"""RocketMQ by its remoting protocol: name servers and brokers, POP consumers, SEND."""
