//! Builders, fixtures, fault and crash wrappers, and an HTTP mirror with scripted faults, for tests.
