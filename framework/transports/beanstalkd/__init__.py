"""beanstalkd: its protocol, a small client of it, and the transport, which ``open_transports`` finds through ``transport``."""

from framework.transports.beanstalkd.client import Client, Job

__all__ = ["Client", "Job"]
