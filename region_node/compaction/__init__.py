"""The latest message of each key: a topic's compacted ledger, its making and its reading."""
