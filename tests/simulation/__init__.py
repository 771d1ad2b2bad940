"""The deterministic simulator: the product's real classes under virtual time and every fault, by seed."""
