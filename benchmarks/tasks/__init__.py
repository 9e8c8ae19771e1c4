"""What a suite can ask for, one module a task."""
