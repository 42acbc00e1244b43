"""Quota decides who may ask, charges for it, gives charges back, and counts what models cost.

It owns the schema `quota`: accounts, ledger, sliding windows, preferences, prices and costs.
"""
