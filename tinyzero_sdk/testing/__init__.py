"""The conformance kit: laws that every reward must keep, and what it takes to break one."""
