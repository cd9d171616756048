"""What developers run and users do not install: set-up, generators, benchmarks."""
