"""Interfaces between the components: their gateways, and the values that travel. Imports no component."""
