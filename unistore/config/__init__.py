"""Training configurations: YAML files as the documents of each family write them."""
