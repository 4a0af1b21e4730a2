"""One node of a metadata store as clients and operators see it: listener, answers, leases, members. Rules of Raft
and layouts of keys are elsewhere.
"""
