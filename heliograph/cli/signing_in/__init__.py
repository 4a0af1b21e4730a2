"""Signing in at an identity provider: a token that a person gets by a device code, kept for one admin address.

Is: what an issuer is asked, the file of tokens, and which token a request takes. Isn't: a command
(`heliograph.cli.sign_in_commands`), or judging a token: brokers do.
"""
