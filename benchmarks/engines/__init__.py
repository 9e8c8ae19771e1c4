"""Where jobs are done: processes of this machine, or a Ray cluster."""
