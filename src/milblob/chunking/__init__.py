"""Cutting a model into packages that run one after another, and joining such packages."""
