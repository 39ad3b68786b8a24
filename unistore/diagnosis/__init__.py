"""What `unistore.doctor` looks at: the machine, where a store lies, how fast it reads, and what follows."""
