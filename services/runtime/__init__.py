"""Plumbing every Glossa process shares; it knows no service."""
