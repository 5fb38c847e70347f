"""beanstalkd: the whole protocol, a small client, and the transport. ``open_transports`` finds it through ``transport``."""
