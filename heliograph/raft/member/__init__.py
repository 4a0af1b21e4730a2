"""A running Raft member: the shell around the core and its disk. Rules of Raft are in the core."""
