"""The sharing of cards: protocol, ledger, policies, daemon and commands. No GPU is needed."""
