"""Tests are tested: a rule is removed from a copy of the project, and a test has to fail."""
