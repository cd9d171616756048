"""TLS on both sides: contexts that follow their files, who may come in, and what stands between socket and protocol."""
