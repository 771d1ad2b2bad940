"""What the components say to each other: their gateways, and the values that travel. Imports no component."""
