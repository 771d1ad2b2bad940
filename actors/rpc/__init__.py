"""Typed tell/ask gateways over authenticated, length-prefixed MessagePack (Flink's `rpc` package)."""
