"""The client's side of bookies: connections, choice, quarantine. It knows no quorum."""
