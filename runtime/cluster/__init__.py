"""The cluster as its users meet it: processes, runtime directory, command line."""
