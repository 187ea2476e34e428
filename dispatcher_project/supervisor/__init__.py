"""Starts, watches and stops the processes of `manage.py up`. Standard library only, one thread.

One thread, because a child gets SIGKILL when the *thread* that forked it ends (PR_SET_PDEATHSIG), and because
code between fork and exec is safe only without other threads. No Django, because this process lives as long
as all the others and does nothing most of the time: 15 MB instead of 90.
"""
