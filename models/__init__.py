"""What must be computed: shapes, blocks and the spelling of checkpoints. Never a card."""
