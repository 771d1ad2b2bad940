"""The processes of tasks: the zygote they are forked from, and what runs in them."""
