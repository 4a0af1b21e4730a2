"""Transactions: their coordinators, and the topics and subscriptions that take part."""
