"""Operators' commands that need server code. They parse, ask, and print; a rule is never here."""
