"""A bookie's HTTP pages. No broker's code is loaded here."""
