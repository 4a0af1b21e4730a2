"""The ports to the machine: with the event loop, these are all that a simulator replaces. And the small tools that are
written once: tasks and their end, work that is repeated, pauses after failures, rates, budgets, newest measurements.
"""
