"""The environment of a component: the runtime directory, the configuration, the high-availability services."""
