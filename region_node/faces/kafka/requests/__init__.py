"""Handlers of groups, transactions, quotas, ACLs, and sign-in. From fields to the parts that decide, and back."""
