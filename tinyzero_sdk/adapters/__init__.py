"""A task in other trainers: as a reward of verl and of TRL, and as an environment of verifiers.

One module for each; none of them is imported before a function that needs it is called. See docs/adapters.md.
"""
