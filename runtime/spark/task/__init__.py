"""The processes of tasks: the zygote that forks them, and the code that runs in them."""
