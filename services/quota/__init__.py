"""Quota decides who may ask, charges for it and gives charges back.

It owns the schema `quota`: accounts, the ledger and the sliding windows.
"""
