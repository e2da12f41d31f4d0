"""The objects that every room uses: estimates, vectors, rollouts, and forward mode."""
