"""From the values of our gateways to the JSON of Flink's REST API v1 (Flink's `runtime.rest.messages`). Pure.

Times are milliseconds since the epoch and -1 where there is none, never null; ids are 32 hexadecimal digits; states are
Flink's words. What is not known of a Spark job is zero with its ``...-complete`` flag false, or an empty list.
"""
