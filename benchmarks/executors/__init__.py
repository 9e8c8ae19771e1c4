"""Where the jobs of a suite are done: in processes of this machine, or on a Ray cluster."""
