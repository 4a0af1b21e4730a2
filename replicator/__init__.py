"""From region to region: the replicated log, links, receivers, audit. It knows no client's connection."""
