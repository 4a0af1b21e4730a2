"""Commands that are clients themselves: they publish, consume, and measure. They speak the Pulsar protocol, not
REST.
"""
