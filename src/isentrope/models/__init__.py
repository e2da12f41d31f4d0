"""Models: what loads, refuses, shards and saves memory. Nothing here knows a policy."""
