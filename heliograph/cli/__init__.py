"""The command line. Commands of the servers are added by their own package, through entry points."""
