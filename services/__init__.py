"""The Glossa suite: four gRPC services, the plumbing they share, and the `glossa` command."""
