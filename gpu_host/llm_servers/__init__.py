"""LLM servers on a GPU machine as models of its pinned worker: started for a job, stopped when idle, in the
same memory budget as the models that the worker holds itself.

Imported by the model process: no Django, no torch."""
