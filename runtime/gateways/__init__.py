"""The typed interfaces of the components, and the plain values that travel over them (Flink's gateways)."""
