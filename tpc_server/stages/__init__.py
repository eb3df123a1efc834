"""the FSM steps a core runs. Owner: any thread (names only)."""
