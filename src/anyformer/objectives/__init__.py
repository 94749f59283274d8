"""What a model is asked to learn: values that go with any model for which they make sense."""
