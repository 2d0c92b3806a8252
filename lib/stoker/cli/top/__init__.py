"""`stoker top`: a full-screen view of a pipeline, of what `stoker status` reads and of the logs' ends."""
