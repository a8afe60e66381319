"""The validator: a rule for each sentence of the MIL specification, and the types that operations infer."""
