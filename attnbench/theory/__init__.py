"""Statements of theory about Transformers, each with the number that it predicts and the number that is measured."""
