"""A region's own truth: the layout of its keys, its nodes, its level, its backup. The store itself is heliograph.kv."""
