"""Cache makes every explanation once and serves it to everyone who may have it.

It owns the schema `cache`: generations (results and job queue in one), requests and the outbox.
"""
