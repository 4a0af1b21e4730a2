"""One handler a command of Pulsar's protocol. No sockets."""
