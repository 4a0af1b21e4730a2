"""Simulated worlds (`sim`), and real processes through Toxiproxy (`wan`), whose asserts all say what they compared."""
