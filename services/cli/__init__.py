"""The `glossa` command: runs the suite on one machine and is a client of it like any other."""
