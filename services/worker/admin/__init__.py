"""The admin pages on the Worker's HTTP port: what happened, what happens now, and what failed.

They run in a thread of their own, read the Worker's tables as a role that can only read, and ask
the other services with the token of whoever is signed in.
"""
