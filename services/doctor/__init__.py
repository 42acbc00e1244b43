"""Looks whether everything is as it must be: the suite's promises as SQL, and what it stands on.

`invariants/` holds one file for each promise; it returns no row while the promise is kept. Not a
service: it reads the database as `glossa_auditor`, which may change nothing.
"""
