"""The Worker does the AI work and tells how it goes: it owns generation events (schema `worker`)
and, through leases, the one attempt at a generation that counts."""
