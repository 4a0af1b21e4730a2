"""What one Raft member keeps in its directory: log, snapshots, small files, and what they say together after a
start. It proposes nothing.
"""
