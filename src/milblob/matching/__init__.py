"""Which array of a checkpoint became which weight of a model, and how."""
