"""The channel growth: requests, distinct and new addresses by hour and by day."""
