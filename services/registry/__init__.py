"""The Registry knows every document once, who holds it, and what is on its pages.

It owns the Postgres schema `registry` and the object store; no other service opens PDFs.
"""
