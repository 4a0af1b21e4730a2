"""The Raft core of one member: messages, state, rules. Pure: no asyncio, no disk, no table."""
