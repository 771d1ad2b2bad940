"""The users of a cluster: identities and tokens, roles and what each may do, and the audit log."""
