"""What an actor is made of: cells, their mailboxes' turns, supervision and watching, and the node of a process."""
