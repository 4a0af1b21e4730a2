"""A topic's log as a list of ledgers with cursors: settings and counters that its parts share."""
