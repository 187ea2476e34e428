"""Starts, watches and stops the processes of `manage.py up`. Standard library only, one thread.

One thread, because a child gets SIGKILL when the *thread* that forked it ends (PR_SET_PDEATHSIG), and because
code between fork and exec is safe only without other threads. Without Django the process takes 15 MB instead
of 90, and it is idle most of the time.
"""
