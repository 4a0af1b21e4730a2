"""Which region may confirm, and which may hand out a subscription: leases, gates, their changes."""
