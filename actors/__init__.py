"""The Akka of Understudy: actors, addresses and typed RPC. The only package that imports thespian."""
