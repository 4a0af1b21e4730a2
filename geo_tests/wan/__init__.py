"""Real processes on loopback, real sockets, the official client, every link between regions through Toxiproxy."""
