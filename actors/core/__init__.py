"""Parts of an actor: cells, their mailboxes' turns, supervision and watching, and the node of a process."""
