"""LLM servers on a GPU box as models of its pinned worker: started for a job, stopped when idle, in the same
budget of memory as the models that it holds itself. Imported by the model process: no Django, no torch.
"""
