"""From a spec file to a run folder."""
