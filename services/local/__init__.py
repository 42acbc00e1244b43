"""What runs the suite on one machine: embedded Postgres, keys, tokens, processes."""
