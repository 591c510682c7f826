"""The daemon: connections in, turns out.

`server` (sockets, and who may ask for what), `connection` (bytes and descriptors of one peer),
`sharing` (clients, ledger and scheduler), `credit_page`, `metrics`, `nvml` (what others use),
`process` (start, lock, signals, log).
"""
