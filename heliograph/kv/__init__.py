"""A versioned key-value store that a Raft log drives: its port, its machine, its client, its backup. It knows no
key's meaning and no consensus.
"""
