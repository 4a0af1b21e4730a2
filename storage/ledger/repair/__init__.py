"""Copies that are lost are found and made again. An open ledger's writer is never touched."""
