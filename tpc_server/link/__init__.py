"""A frontend in a process of its own, joined to its scheduler by one link. Owner: names only."""
