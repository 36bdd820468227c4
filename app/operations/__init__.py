"""What operators see of the deployment and do with its work, without HTTP: for the API, and commands that ask it."""
